"""Matrix products by another library: the same numbers and gradients, in its place only, and gone when it goes."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from glassformer.training import products


ROWS, IN, OUT = 300, 160, 200  # large enough for oneDNN


pytestmark = pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="torch was built without oneDNN")


@pytest.fixture
def used(monkeypatch, request):
    """The shapes of the products that oneDNN makes while the test runs; those of weights' gradients if the parameter is True."""
    shapes, original = [], products.onednn_product

    def counted(a, b, bias=None):
        shapes.append((*a.shape, b.shape[1]))
        return original(a, b, bias)

    monkeypatch.setattr(products, "onednn_product", counted)
    if (running := products.use_onednn_products()) is not None:  # since an earlier test of this process has trained
        running._destroy()
    products.use_onednn_products.cache_clear()
    library = products.override_products(weight_gradients=getattr(request, "param", False))
    yield shapes
    library._destroy()


def outputs_and_gradients(linear, x):
    x = x.detach().requires_grad_()
    y = linear(x)
    y.square().sum().backward()
    return y.detach(), x.grad, *(parameter.grad for parameter in linear.parameters())


FORWARD, OF_INPUT = (ROWS, IN, OUT), (ROWS, OUT, IN)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(ROWS, IN), (3, 100, IN)], ids=["rows", "batch"])
@pytest.mark.parametrize(
    ("used", "wide", "made"),
    [
        (False, True, [FORWARD, OF_INPUT]),
        (True, True, [FORWARD, OF_INPUT, (IN, ROWS, OUT)]),  # the narrower side is copied, and the result turned
        (True, False, [OF_INPUT, FORWARD, (IN, ROWS, OUT)]),
    ],
    indirect=["used"],
    ids=["without gradients of weights", "with them, wide", "with them, narrow"],
)
def test_products_and_gradients_are_those_of_float64(bias, shape, wide, made, used):
    torch.manual_seed(0)
    features = (IN, OUT) if wide else (OUT, IN)
    linear, x = nn.Linear(*features, bias=bias), torch.randn(*shape[:-1], features[0])
    precise = nn.Linear(*features, bias=bias).double()
    precise.load_state_dict(linear.state_dict())
    for ours, expected in zip(outputs_and_gradients(linear, x), outputs_and_gradients(precise, x.double()), strict=True):
        assert ours.dtype == torch.float32 and ours.is_contiguous()
        torch.testing.assert_close(ours.double(), expected, rtol=1e-4, atol=1e-3)
    assert sorted(used) == sorted(made)


@pytest.mark.parametrize(
    "make",
    [
        lambda: (torch.randn(8, IN), torch.randn(IN, OUT)),
        lambda: (torch.randn(ROWS, 9), torch.randn(9, OUT)),
        lambda: (torch.randn(IN, ROWS).T, torch.randn(IN, OUT)),
        lambda: (torch.randn(ROWS, IN).double(), torch.randn(IN, OUT).double()),
        lambda: (torch.randn(ROWS, IN), torch.randn(IN, OUT + 1)[:, :-1]),
        lambda: (torch.randn(ROWS, IN), torch.randn(OUT, IN + 1)[:, :-1].T),
    ],
    ids=["few rows", "small", "transposed", "float64", "part of a matrix", "part of a transposed matrix"],
)
def test_other_products_stay_where_they_were(make, used):
    a, b = make()
    torch.testing.assert_close(a @ b, (a.double() @ b.double()).to(a.dtype), rtol=1e-4, atol=1e-4)
    assert not used


def test_sums_other_than_a_bias_are_left_alone(used):
    a, b, c = torch.randn(ROWS, IN), torch.randn(IN, OUT), torch.randn(ROWS, OUT)
    torch.testing.assert_close(torch.addmm(c, a, b, beta=2, alpha=3), 2 * c + 3 * (a @ b), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.addmm(c[0, 0], a, b), a @ b + c[0, 0], rtol=1e-4, atol=1e-4)
    assert used == [(ROWS, IN, OUT)] * 2  # the two products of the right-hand sides


@pytest.mark.parametrize("used", [False, True], indirect=True, ids=["without gradients of weights", "with them"])
@pytest.mark.parametrize("scaled", [{}, {"beta": 0.5, "alpha": 2}])
def test_gradients_of_weights_are_added_in_place(scaled, used, request):
    torch.manual_seed(0)
    total, of_outputs, x = torch.randn(OUT, IN), torch.randn(ROWS, OUT), torch.randn(ROWS, IN)
    expected = total.double().addmm(of_outputs.double().T, x.double(), **scaled)
    assert total.addmm_(of_outputs.T, x, **scaled) is total
    torch.testing.assert_close(total.double(), expected, rtol=1e-4, atol=1e-3)
    with_them = request.node.callspec.params["used"]
    assert used == ([(OUT, ROWS, IN)] if with_them and not scaled else [])


def test_shapes_that_do_not_fit_are_refused_as_before(used):
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        torch.randn(ROWS, IN) @ torch.randn(IN + 1, OUT)


def test_second_derivatives_and_counting_go_on_working(used):
    x, weight = torch.randn(ROWS, IN, requires_grad=True), torch.randn(OUT, IN, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        y = nn.functional.linear(x, weight)
    assert counter.get_total_flops() == 2 * ROWS * IN * OUT
    (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    gradient.sum().backward()
    expected = 2 * (torch.ones(IN) @ weight.detach().T).expand(ROWS, OUT) @ weight.detach()
    torch.testing.assert_close(x.grad, expected, rtol=1e-4, atol=1e-2)


def test_autocast_decides_first(used):
    with torch.autocast("cpu", torch.bfloat16):
        assert nn.Linear(IN, OUT)(torch.randn(ROWS, IN)).dtype == torch.bfloat16
    assert not used


def test_the_products_of_torch_come_back(used):
    library = products.override_products(weight_gradients=True)
    library._destroy()
    a, b = torch.randn(ROWS, IN), torch.randn(IN, OUT)
    torch.testing.assert_close(a @ b, (a.double() @ b.double()).float(), rtol=1e-4, atol=1e-4)
    assert len(used) == 1  # of the fixture's library, which was there before


@pytest.mark.parametrize(
    ("vendor", "capability", "slow"),
    [("AuthenticAMD", "AVX512", True), ("GenuineIntel", "AVX512", False), ("AuthenticAMD", "AVX2", False), ("", "AVX512", False)],
)
def test_only_processors_on_which_mkl_is_slow_are_concerned(vendor, capability, slow, monkeypatch):
    monkeypatch.setattr(products, "cpu_fact", {"vendor_id": vendor}.get)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert products.mkl_is_slow() is slow


@pytest.mark.parametrize(("family", "whole"), [("25", False), ("26", True), ("", False)], ids=["Zen 4", "Zen 5", "not told"])
def test_gradients_of_weights_are_for_whole_registers(family, whole, monkeypatch):
    monkeypatch.setattr(products, "cpu_fact", {"cpu family": family}.get)
    assert products.has_whole_registers() is whole


def test_the_vendor_is_what_the_system_tells(monkeypatch):
    assert products.cpu_fact("vendor_id") in ("AuthenticAMD", "GenuineIntel", "")
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert products.cpu_fact("vendor_id") == ""
