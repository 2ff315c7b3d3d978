# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Looking inside: what every head attends to, whatever kernel computes it, in numbers and in pictures."""

from glassformer.pruning import prune_heads

from .capture import Attention, record_attention
from .diagnosis import Finding, diagnose_curve
from .head_mask import head_importance, mask_heads
from .hooks import ActivationStats, AttentionHealth, GradientMonitor
from .patterns import HeadReport, analyze_heads
from .tracing import MemoryEstimate, ShapeTracer
from .visualizer import AttentionVisualizer, Capture


__all__ = [
    "ActivationStats",
    "Attention",
    "AttentionHealth",
    "AttentionVisualizer",
    "Capture",
    "Finding",
    "GradientMonitor",
    "HeadReport",
    "MemoryEstimate",
    "ShapeTracer",
    "analyze_heads",
    "diagnose_curve",
    "head_importance",
    "mask_heads",
    "prune_heads",
    "record_attention",
]
