"""Makes the Auto classes, the pipelines, PEFT and TransformerLens know glassformer, without importing any of them.

Loading transformers' modelling code takes seconds that a script which only wants a config should not pay. So each
registration waits for the module that it writes to: it runs at once if that module is loaded, otherwise right after somebody
loads it.
"""

import importlib
import importlib.abc
import importlib.machinery
import logging
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
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING": "GlassformerForImageClassification",
}
LANGUAGE_MODELS = [name for name in HEADS.values() if name.endswith(("LM", "Generation"))]


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
        pipelines.PIPELINE_REGISTRY.supported_tasks.pop(task, None)  # registered twice, it would warn
        pipelines.PIPELINE_REGISTRY.register_pipeline(task, pipeline_class=pipeline_class, pt_model=auto_class, type="text")


def register_lora_targets(constants: Any) -> None:
    """Adapters go where they go in Llama, whose projections have the same names."""
    tables = [value for name, value in vars(constants).items() if name.endswith("_TARGET_MODULES_MAPPING")]
    lora = constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    for table in tables:
        if table.get("llama") == lora["llama"]:
            table.setdefault(MODEL_TYPE, lora["llama"])


def register_lens_architectures(architecture_adapter_factory: Any) -> None:
    """TransformerLens knows our adapter by an entry point, but its loader asks this table whether there is one at all."""
    from .analysis.lens import GlassformerAdapter

    for class_name in LANGUAGE_MODELS:
        architecture_adapter_factory.SUPPORTED_ARCHITECTURES.setdefault(class_name, GlassformerAdapter)


def register_lens_classes(architectures: Any) -> None:
    """Which Auto class loads a model, if it is not AutoModelForCausalLM."""
    architectures.SEQ2SEQ_ARCHITECTURES.add("GlassformerForConditionalGeneration")
    architectures.MASKED_LM_ARCHITECTURES.add("GlassformerForMaskedLM")


CALLBACKS: dict[str, Callable[[Any], None]] = {
    "transformers.models.auto.configuration_auto": register_config,
    "transformers.models.auto.modeling_auto": register_heads,
    "transformers.pipelines": register_pipelines,
    "peft.utils.constants": register_lora_targets,
    "transformer_lens.factories.architecture_adapter_factory": register_lens_architectures,
    "transformer_lens.utilities.architectures": register_lens_classes,
}


def register_all() -> None:
    """Register with what is loaded already, and with the rest as soon as it is."""
    if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())
    for name in CALLBACKS:
        if getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False):
            importlib.import_module(name)  # another thread is at it: wait until it is done
        if name in sys.modules:
            _call_back(name)


def _call_back(name: str) -> None:
    try:
        CALLBACKS[name](sys.modules[name])
    except Exception as error:  # never break the import of somebody else's module
        logging.getLogger(__name__).warning(f"glassformer could not register itself in {name}: {error!r}")


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds the modules above as Python would, and calls back each time one has been loaded."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname not in CALLBACKS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_call_back(module: ModuleType) -> None:
            load(module)
            _call_back(fullname)

        spec.loader.exec_module = load_and_call_back
        return spec
