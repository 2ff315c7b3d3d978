"""The config as a sibling of the model.

Code on the Hub is one flat folder, so the model imports its config from here; a saved folder gets the real file of the
same name from `glassformer.configuration` in its place.
"""

from glassformer.configuration.configuration_glassformer import AUTO_MAP, GlassformerConfig


__all__ = ["AUTO_MAP", "GlassformerConfig"]
