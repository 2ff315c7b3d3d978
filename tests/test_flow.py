"""How signals travel: the lengths of vectors and the norms of gradients, held against a pass by hand."""

import pytest
import torch
from models import LANGUAGE_MODELS, tiny_config, tiny_language_model
from tokenizer import word_tokenizer

from glassformer import GlassformerForSequenceClassification
from glassformer.analysis import AttentionVisualizer
from glassformer.analysis.flow import measure_flow


TEXTS = ["the lamp is in the glass", "a pane is on the window"]


def test_lengths_and_gradients_by_hand():
    model = tiny_language_model("decoder")
    ids = torch.randint(5, 30, (2, 6))
    inputs = {"input_ids": ids, "labels": ids}
    flow = measure_flow(model, inputs)
    assert all(parameter.grad is None for parameter in model.parameters())
    output = model(**inputs, output_hidden_states=True)
    output.loss.backward()
    assert list(flow.stream) == ["decoder.layers.0", "decoder.layers.1", "decoder.layers.2"]
    for layer in (0, 1):  # the last one is normed before it is handed out
        expected = output.hidden_states[layer + 1].detach().norm(dim=-1).mean()
        assert flow.stream[f"decoder.layers.{layer}"] == pytest.approx(float(expected), rel=1e-5)
    squares = sum(float(p.grad.norm()) ** 2 for p in model.model.decoder.layers[1].parameters())
    assert flow.gradients["decoder.layers.1"] == pytest.approx(squares**0.5, rel=1e-5)


@pytest.mark.parametrize("shape", [*LANGUAGE_MODELS, "classifier"])
def test_a_picture_of_every_shape(shape, tmp_path):
    tokenizer = word_tokenizer()
    if shape == "classifier":
        model = GlassformerForSequenceClassification(tiny_config("encoder", num_labels=3)).eval()
    else:
        model = tiny_language_model(shape)
    target = "a pane" if shape == "encoder-decoder" else None
    path = AttentionVisualizer(model, tokenizer).plot_norm_and_gradient_flow(TEXTS[0], tmp_path / "flow.png", target)
    assert path.stat().st_size > 10_000 and not model.training


def test_without_a_target_there_is_no_loss(tmp_path):
    visualizer = AttentionVisualizer(tiny_language_model(), word_tokenizer())
    with pytest.raises(ValueError, match="a target: pass them"):
        visualizer.plot_norm_and_gradient_flow("the lamp", tmp_path / "flow.png")
