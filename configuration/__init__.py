"""The configuration of glassformer models, with named presets beside it."""

from .configuration_glassformer import GlassformerConfig


__all__ = ["GlassformerConfig"]
