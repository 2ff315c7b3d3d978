"""Heads by name: constructed attention is called what it is, and even attention is called nothing in particular."""

import json
import math

import pytest
import torch
from models import tiny_language_model
from tokenizer import word_tokenizer

from glassformer.analysis import AttentionVisualizer, analyze_heads
from glassformer.analysis.heads import HeadStatistics, cross_patterns, entropy_of, self_patterns


LENGTH, DELIMITER = 12, 99
IDS = [1, 5, 6, 99, 5, 6, 7, 99, 8, 5, 6, 2]


def sharp(places) -> torch.Tensor:
    """Nearly all attention of token t on `places(t)`, where there is such a place, else on itself."""
    weights = torch.full((LENGTH, LENGTH), 0.01)
    for query in range(LENGTH):
        place = places(query)
        weights[query, place if 0 <= place < LENGTH else query] = 5.0
    return weights / weights.sum(-1, keepdim=True)


def causal(weights: torch.Tensor) -> torch.Tensor:
    weights = weights.tril()
    return weights / weights.sum(-1, keepdim=True)


HEADS = {
    "previous token": sharp(lambda t: t - 1),
    "next token": sharp(lambda t: t + 1),
    "itself": sharp(lambda t: t),
    "first token": sharp(lambda t: 0),
    "delimiter": sharp(lambda t: 3 if t != 3 else 7),
    "broad": torch.full((LENGTH, LENGTH), 1 / LENGTH),
}


def names(weights: torch.Tensor, is_causal: bool, ids=IDS) -> list[str]:
    statistics = HeadStatistics(len(weights))
    for _ in range(2):
        statistics.add(weights, self_patterns(ids, {DELIMITER}), is_causal)
    return [row["pattern"] for row in statistics.describe()]


def test_every_constructed_head_gets_its_name():
    assert names(torch.stack(list(HEADS.values())), is_causal=False) == list(HEADS)


def test_names_hold_in_a_decoder():
    found = ["previous token", "itself", "first token", "broad"]
    assert names(torch.stack([causal(HEADS[name]) for name in found]), is_causal=True) == found


def test_induction_is_what_came_after_the_same_token():
    ids = [3, 4, 5, 6, 3, 4, 5, 6, 3, 4, 5, 6]
    head = causal(sharp(lambda t: t - 3 if t >= 4 else t))
    assert names(head[None], is_causal=True, ids=ids) == ["induction"]
    head = causal(sharp(lambda t: t - 4 if t >= 4 else t))
    assert names(head[None], is_causal=True, ids=ids) == ["same token"]


def test_an_alignment_runs_along_the_diagonal():
    weights = torch.zeros(1, 6, 12)
    weights[0, torch.arange(6), torch.arange(6) * 2] = 1.0
    statistics = HeadStatistics(1)
    statistics.add(weights, cross_patterns(6, list(range(12)), set()), is_causal=False)
    [row] = statistics.describe()
    assert row["pattern"] == "diagonal" and row["diagonal"] == pytest.approx(1.0) and row["entropy"] == pytest.approx(0.0)


def test_scores_are_shares_of_attention_by_hand():
    weights = torch.tensor([[[1.0, 0.0, 0.0], [0.6, 0.4, 0.0], [0.1, 0.7, 0.2]]])
    statistics = HeadStatistics(1)
    statistics.add(weights, self_patterns([5, 6, 7], set()), is_causal=True)
    [row] = statistics.describe()
    assert row["previous token"] == pytest.approx((0.6 + 0.7) / 2)
    assert row["itself"] == pytest.approx((1.0 + 0.4 + 0.2) / 3)
    assert row["first token"] == pytest.approx((0.6 + 0.1) / 2)
    assert row["distance"] == pytest.approx((0.6 + 0.1 * 2 + 0.7) / 2)
    assert row["gain"] == pytest.approx(0.65 - (1 / 2 + 1 / 3) / 2)
    assert "next token" not in row and "same token" not in row  # which no token of this text has in sight


def test_entropy_lies_between_one_place_and_all():
    assert float(entropy_of(torch.tensor([1.0, 0.0, 0.0]))) == pytest.approx(0.0, abs=1e-9)
    assert float(entropy_of(torch.full((8,), 1 / 8))) == pytest.approx(math.log(8))


# Over many texts


def test_heads_that_were_made_to_do_something_are_found_out(tmp_path):
    """Head 0 is made to see nothing but the nearest token, itself; head 1 nothing in particular."""
    tokenizer = word_tokenizer()
    model = tiny_language_model("decoder", vocab_size=len(tokenizer), position_encoding="alibi", num_heads=2)
    with torch.no_grad():
        for layer in model.model.decoder.layers:
            layer.self_attn.q_proj.weight.zero_()
            layer.self_attn.k_proj.weight.zero_()
        model.model.decoder.position_bias.slopes.fill_(0.0)
        model.model.decoder.position_bias.slopes[0] = 30.0  # all attention on the token itself
    texts = ["the lamp shines through the glass pane and breaks", "who is behind the window , one of two ?"] * 20
    report = AttentionVisualizer(model, tokenizer).analyze_head_patterns(texts, tmp_path / "heads")
    found = {(row["layer"], row["head"]): row["pattern"] for row in report.rows}
    assert {found[layer, 0] for layer in range(model.config.num_decoder_layers)} == {"itself"}
    assert {found[layer, 1] for layer in range(model.config.num_decoder_layers)} == {"broad"}
    assert report.texts == 40 and {row["kind"] for row in report.rows} == {"decoder"}
    table = (tmp_path / "heads.csv").read_text().splitlines()
    assert len(table) == 1 + len(report.rows) and table[0].startswith("kind,layer,head,pattern,gain,entropy")
    assert len(json.loads((tmp_path / "heads.json").read_text())["heads"]) == len(report.rows)
    assert (tmp_path / "heads.png").stat().st_size > 1000


def test_padding_and_company_do_not_change_the_figures():
    tokenizer = word_tokenizer()
    torch.manual_seed(0)
    model = tiny_language_model(vocab_size=len(tokenizer))
    rows = [{"source": "the lamp", "target": "a light"}, {"source": "who is behind the window", "target": "one of two is"}]
    together, alone = (analyze_heads(model, tokenizer, rows, size).rows for size in (2, 1))
    for one, other in zip(together, alone):
        assert one == pytest.approx(other, abs=1e-5)
    assert {row["kind"] for row in together} == {"encoder", "decoder", "cross"}


def test_what_cannot_be_analysed_is_refused():
    tokenizer = word_tokenizer()
    with pytest.raises(ValueError, match="pass dicts with source and target"):
        analyze_heads(tiny_language_model(), tokenizer, ["the lamp"])
    with pytest.raises(ValueError, match="no texts to look at"):
        analyze_heads(tiny_language_model("decoder"), tokenizer, [])
