"""Makes the Auto classes, the pipelines and PEFT know glassformer, without importing any of them.

Loading transformers' modelling code takes seconds that a script which only wants a config should not pay. So each
registration waits for the module that it writes to: `when_imported` runs it at once if that module is loaded, otherwise right
after somebody loads it.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


MODEL_TYPE = "glassformer"
CONFIG = "GlassformerConfig"
# Table in transformers.models.auto.modeling_auto -> class name
HEADS = {
    "MODEL_MAPPING": "GlassformerModel",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING": "GlassformerForConditionalGeneration",
    "MODEL_FOR_CAUSAL_LM_MAPPING": "GlassformerForCausalLM",
    "MODEL_FOR_MASKED_LM_MAPPING": "GlassformerForMaskedLM",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING": "GlassformerForSequenceClassification",
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING": "GlassformerForTokenClassification",
    "MODEL_FOR_QUESTION_ANSWERING_MAPPING": "GlassformerForQuestionAnswering",
}


def register_config(configuration_auto: Any) -> None:
    from .configuration_glassformer import GlassformerConfig

    configuration_auto.AutoConfig.register(MODEL_TYPE, GlassformerConfig, exist_ok=True)


def register_heads(modeling_auto: Any) -> None:
    """Enter the class names, as transformers does for its own models; the classes are imported when first asked for.

    The name tables are also what `Trainer` and the pipelines consult, for example to shift labels for a causal model.
    """
    package = sys.modules[__package__]
    for table, class_name in HEADS.items():
        mapping = getattr(modeling_auto, table)
        mapping._model_mapping[MODEL_TYPE] = class_name
        mapping._reverse_config_mapping[CONFIG] = MODEL_TYPE
        mapping._config_mapping[MODEL_TYPE] = CONFIG
        mapping._modules[MODEL_TYPE] = package


def register_pipelines(pipelines: Any) -> None:
    from .pipelines import TASKS

    for task, (pipeline_class, auto_class) in TASKS.items():
        pipelines.REMOVED_TASKS.pop(task, None)  # a task named there is refused before the registry is asked
        pipelines.PIPELINE_REGISTRY.register_pipeline(task, pipeline_class=pipeline_class, pt_model=auto_class, type="text")


def register_lora_targets(constants: Any) -> None:
    """Adapters go where they go in Llama, whose projections have the same names."""
    tables = [value for name, value in vars(constants).items() if name.endswith("_TARGET_MODULES_MAPPING")]
    lora = constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    for table in tables:
        if table.get("llama") == lora["llama"]:
            table.setdefault(MODEL_TYPE, lora["llama"])


def register_all() -> None:
    when_imported("transformers.models.auto.configuration_auto", register_config)
    when_imported("transformers.models.auto.modeling_auto", register_heads)
    when_imported("transformers.pipelines", register_pipelines)
    when_imported("peft.utils.constants", register_lora_targets)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds a module as Python would, and calls back when it has been loaded."""

    def __init__(self, name: str, callback: Callable[[ModuleType], None]):
        self.name, self.callback = name, callback

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_call_back(module: ModuleType) -> None:
            load(module)
            sys.meta_path.remove(self)
            self.callback(module)

        spec.loader.exec_module = load_and_call_back
        return spec


def when_imported(name: str, callback: Callable[[ModuleType], None]) -> None:
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        callback(module)
    else:
        sys.meta_path.insert(0, _AfterImport(name, callback))
