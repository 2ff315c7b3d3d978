"""The configuration of glassformer models, and the named presets and recipes beside it."""

from .configuration_glassformer import GlassformerConfig


__all__ = ["GlassformerConfig"]
