# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""The native architectures that we exchange weights with, one table each."""

from ..family import Family
from .bart import BART, MARIAN, MBART, PEGASUS
from .bert import BERT, DISTILBERT, ROBERTA
from .gpt2 import GPT2
from .gpt_neox import GPT_NEOX
from .llama import GEMMA, LLAMA, MISTRAL, QWEN2, QWEN3
from .modernbert import MODERNBERT
from .t5 import T5
from .vit import VIT


DECODERS = (GPT2, LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA, GPT_NEOX)
ENCODERS = (BERT, ROBERTA, DISTILBERT, MODERNBERT, VIT)
ENCODER_DECODERS = (MARIAN, BART, PEGASUS, MBART, T5)

FAMILIES: dict[str, Family] = {family.name: family for family in DECODERS + ENCODERS + ENCODER_DECODERS}
