"""Heads that are alike, by distances that can be counted by hand; syntax, where every head follows a known arc."""

import json

import pytest
import torch
from models import tiny_language_model
from tokenizer import word_tokenizer

from glassformer.analysis import AttentionVisualizer, analyze_heads
from glassformer.analysis.heads import HeadStatistics, self_patterns
from glassformer.analysis.redundancy import HeadDistances
from glassformer.analysis.syntax import syntactic_patterns


TEXTS = ["the lamp shines and breaks", "a pane breaks", "the light shines through the glass"]


def test_the_distance_is_the_share_of_attention_on_other_places():
    first = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    moved = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.25, 0.25]])  # all of the first row, a quarter of the second
    distances = HeadDistances()
    distances.add(torch.stack([first, moved, first]))
    distances.add(torch.stack([first[:1], first[:1], moved[:1]]))  # a text of one token
    expected = torch.tensor([[0.0, 1.25, 1.0], [1.25, 0.0, 2.25], [1.0, 2.25, 0.0]]) / 3
    torch.testing.assert_close(distances.mean(), expected)


def test_heads_that_are_alike_share_a_cluster():
    base = torch.rand(5, 6).softmax(-1)
    other = torch.eye(5, 6)
    distances = HeadDistances()
    distances.add(torch.stack([base, other, 0.95 * base + 0.05 * other, other]))
    assert distances.clusters() == [0, 1, 0, 1]


def test_a_report_tells_which_heads_are_alike(tmp_path):
    """Two heads with the same weights attend alike in whatever they read."""
    model, tokenizer = tiny_language_model("encoder"), word_tokenizer()
    attention, width = model.model.encoder.layers[0].self_attn, model.config.d_k
    with torch.no_grad():
        for linear in (attention.q_proj, attention.k_proj):
            linear.weight.normal_(std=1.0)
            linear.weight[:width] = linear.weight[width : 2 * width]
            linear.bias[:width] = linear.bias[width : 2 * width]
    report = AttentionVisualizer(model, tokenizer).analyze_head_patterns(TEXTS, tmp_path / "heads")
    clusters = {(row["layer"], row["head"]): row["cluster"] for row in report.rows}
    assert clusters[0, 0] == clusters[0, 1] != clusters[0, 2]
    assert report.distances["encoder"].shape == (8, 8) and float(report.distances["encoder"][0, 1]) == pytest.approx(0, abs=1e-6)
    saved = json.loads((tmp_path / "heads.json").read_text())
    assert saved["heads"][0]["cluster"] == "encoder 0"
    assert (tmp_path / "heads-likeness.png").stat().st_size > 5000


# "the dog sees the lamp", whose words are cut into tokens: [bos] the do g sees the lamp
WORD_OF = [None, 0, 1, 1, 2, 3, 4]
GOVERNORS, RELATIONS = [1, 2, -1, 4, 2], ["det", "nsubj", "root", "det", "obj"]


def test_arcs_between_words_are_pairs_of_their_tokens():
    patterns = syntactic_patterns(WORD_OF, GOVERNORS, RELATIONS)
    assert patterns["governor"].nonzero().tolist() == [[1, 2], [1, 3], [2, 4], [3, 4], [5, 6], [6, 4]]
    assert torch.equal(patterns["governed"], patterns["governor"].T)
    assert patterns["governor (nsubj)"].nonzero().tolist() == [[2, 4], [3, 4]]
    assert "governor (root)" not in patterns


def test_a_head_that_follows_arcs_is_called_so():
    """Attention of every token on the first token of its governor, and on itself where it has none."""
    weights = torch.full((7, 7), 0.01)
    for token, place in enumerate([0, 2, 4, 4, 4, 6, 4]):
        weights[token, place] = 3.0
    weights = weights / weights.sum(-1, keepdim=True)
    statistics = HeadStatistics(1)
    patterns = self_patterns([1, 5, 6, 7, 8, 5, 9], set())
    statistics.add(weights[None], patterns | syntactic_patterns(WORD_OF, GOVERNORS), is_causal=False)
    assert statistics.describe()[0]["pattern"] == "governor"


def test_rows_with_parses_are_read():
    model, tokenizer = tiny_language_model("encoder"), word_tokenizer()
    rows = []
    for words in map(str.split, TEXTS):
        parse = {"governors": [1, 2, -1, 2, 2, 2], "relations": ["det", "nsubj", "root", "x", "x", "x"]}
        rows.append({"words": words, **{name: values[: len(words)] for name, values in parse.items()}})
    scores = analyze_heads(model, tokenizer, rows).rows[0]
    assert {"governor", "governed", "governor (det)", "governor (nsubj)"} <= scores.keys()
    plain = analyze_heads(model, tokenizer, TEXTS).rows[0]
    assert plain["previous token"] == pytest.approx(scores["previous token"])
    with pytest.raises(ValueError, match="as many governors"):
        analyze_heads(model, tokenizer, [{"words": ["a", "b"], "governors": [1]}])
    with pytest.raises(ValueError, match="The governor 7 is no place among 2 words"):
        analyze_heads(model, tokenizer, [{"words": ["a", "b"], "governors": [7, -1]}])
    with pytest.raises(ValueError, match="needs their governors"):
        analyze_heads(model, tokenizer, [{"words": ["a", "b"]}])
