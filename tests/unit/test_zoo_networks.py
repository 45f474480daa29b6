"""The networks that are written in `benchmarks` compute what their papers say."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")

from benchmarks import open_export, zoo_images, zoo_networks, zoo_steps  # noqa: E402


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_graph_attention_is_a_softmax_over_the_neighbours() -> None:
    nodes, heads, width = 9, 2, 5
    layer = zoo_networks.GraphAttention(4, width, heads)
    with torch.no_grad():
        layer.bias.normal_()
        x, edges = zoo_networks.random_graph(nodes, 20, features=4)
        edges = torch.unique(edges, dim=1)  # `scores` has one entry for each edge.
        got = layer(x, edges)
        projected = layer.project(x).view(nodes, heads, width)
        scores = torch.full((nodes, nodes, heads), -torch.inf)
        for source, target in edges.T.tolist():
            both = (projected[source] * layer.source + projected[target] * layer.target).sum(-1)
            scores[target, source] = torch.nn.functional.leaky_relu(both, 0.2)
        wanted = torch.einsum("tsh,shw->thw", scores.softmax(1), projected)
    torch.testing.assert_close(got, wanted.reshape(nodes, -1) + layer.bias)


def test_attention_between_fields_does_not_know_their_order() -> None:
    layer = zoo_networks.FieldAttention(8, 12, 2)
    x, order = torch.randn(3, 6, 8), torch.randperm(6)
    torch.testing.assert_close(layer(x)[:, order], layer(x[:, order]))
    other = x.clone()
    other[:, 0] += 1
    assert not torch.allclose(layer(other)[:, 1:], layer(x)[:, 1:])


def test_a_line_of_text_has_a_column_for_each_four_pixels() -> None:
    found = zoo_networks.Crnn(characters=11).eval()(torch.randn(2, 1, 32, 64))
    assert found.shape == (17, 2, 11)
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(17, 2))


def test_a_frame_becomes_256_samples_of_sound() -> None:
    network = zoo_networks.keep_variance(zoo_networks.HifiGan(width=16))
    x = torch.randn(1, 80, 24)
    sound = network(x)
    assert sound.shape == (1, 1, 24 * 256)
    # A frame in the middle depends on samples on both sides, and on none that are far away.
    other = x.clone()
    other[:, :, 12] += 1
    changed = (network(other) != sound)[0, 0].nonzero()
    assert changed.min() < 12 * 256 < 13 * 256 < changed.max()
    assert changed.max() - changed.min() < 24 * 256


@pytest.mark.parametrize("flat", [False, True])
def test_a_u_keeps_sizes_that_no_level_divides(flat: bool) -> None:
    block = zoo_images.ResidualU(5, 3, 4, 8, flat=flat)
    assert block(torch.randn(2, 3, 37, 51)).shape == (2, 8, 37, 51)


def test_u2net_has_seven_maps_of_the_size_of_the_image() -> None:
    maps = zoo_images.U2NetP(width=8, inner=4).eval()(torch.randn(1, 3, 70, 45))
    assert [tuple(x.shape) for x in maps] == [(1, 1, 70, 45)] * 7


def test_boxes_are_in_pixels_around_the_centres_of_their_cells() -> None:
    network = zoo_images.YoloV8(side=64, classes=3).eval()
    boxes = 8 * 8 + 4 * 4 + 2 * 2
    assert network(torch.randn(2, 3, 64, 64)).shape == (2, 4 + 3, boxes)
    # Each side of a box has scores for the distances 0 to 15 strides from the centre. If all scores
    # are equal, the distance is their mean, 7.5.
    found = network._decoded(torch.zeros(1, 4 * network.BINS, boxes))[0].T
    torch.testing.assert_close(found[0], torch.tensor([4.0, 4.0, 120.0, 120.0]))
    torch.testing.assert_close(found[9], torch.tensor([12.0, 12.0, 120.0, 120.0]))
    torch.testing.assert_close(found[64], torch.tensor([8.0, 8.0, 240.0, 240.0]))
    torch.testing.assert_close(found[-1], torch.tensor([48.0, 48.0, 480.0, 480.0]))


def test_weights_that_keep_variance_leave_something_to_compare() -> None:
    def told_apart(network: torch.nn.Module) -> float:
        """How far the outputs for two inputs are apart, relative to the outputs."""
        with torch.no_grad():
            one, other = (network.eval()(torch.randn(1, 8, 16, 16)) for _ in range(2))
        return float((one - other).norm() / one.norm())

    deep = torch.nn.Sequential(*(zoo_networks.conv_relu(8, 8) for _ in range(30)))
    assert told_apart(deep) < 0.001
    assert told_apart(zoo_networks.keep_variance(deep)) > 0.05


def test_a_step_continues_the_tokens_of_its_cache() -> None:
    transformers = pytest.importorskip("transformers", reason="not installed (extra `zoo`)")
    config = transformers.Qwen2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, vocab_size=50,
    )  # fmt: skip
    network = transformers.Qwen2ForCausalLM(config).eval()
    ids = torch.randint(0, 50, (1, 9))
    with torch.no_grad():
        whole = network(input_ids=ids)
        past = network(input_ids=ids[:, :8], use_cache=True).past_key_values
        step = zoo_steps.DecoderStep(network)
        kept = [x for layer in past.layers for x in (layer.keys, layer.values)]
        shapes = [tuple(x.shape) for x in kept]
        given = zoo_steps.keys_and_values(1, layers=2, heads=2, tokens=8, width=8)
        assert shapes == [tuple(x.shape) for x in given]
        mask, position = torch.ones(1, 9, dtype=torch.int64), torch.tensor([[8]])
        scores, *after = step(ids[:, 8:], mask, position, *kept)
    torch.testing.assert_close(scores[:, 0], whole.logits[:, 8])
    assert [x.shape[2] for x in after] == [9] * 4


@pytest.mark.parametrize("kind", ["T5", "Whisper"])
def test_a_step_of_a_decoder_reads_the_encoder_through_its_cache(kind: str) -> None:
    transformers = pytest.importorskip("transformers", reason="not installed (extra `zoo`)")
    options = {
        "T5": {"d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
        "Whisper": {
            "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
            "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
            "pad_token_id": 1, "bos_token_id": 1, "eos_token_id": 1, "decoder_start_token_id": 1,
        },
    }  # fmt: skip
    config = getattr(transformers, f"{kind}Config")(d_model=32, vocab_size=50, **options[kind])
    network = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    encoded, ids = (torch.randn(1, 12, 32),), torch.randint(2, 50, (1, 6))
    with torch.no_grad():
        whole = network(encoder_outputs=encoded, decoder_input_ids=ids)
        past = network(
            encoder_outputs=encoded, decoder_input_ids=ids[:, :5], use_cache=True
        ).past_key_values
        kept = [
            x
            for cache in (past.self_attention_cache, past.cross_attention_cache)
            for layer in cache.layers
            for x in (layer.keys, layer.values)
        ]
        scores, *after = zoo_steps.EncoderDecoderStep(network)(ids[:, 5:], *kept)
    torch.testing.assert_close(scores[:, 0], whole.logits[:, 5])
    assert [x.shape[2] for x in after] == [6] * 4


def test_a_detector_for_any_size_finds_the_same_boxes() -> None:
    one = zoo_networks.keep_variance(zoo_images.YoloV8(64)).eval()
    any_size = open_export.AnySizeYolo(64).eval()
    any_size.load_state_dict(one.state_dict())
    x = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(any_size(x), one(x))
    assert any_size(torch.randn(1, 3, 96, 32)).shape == (1, 84, 12 * 4 + 6 * 2 + 3 * 1)


def test_interest_does_not_know_the_order_of_the_past() -> None:
    network = open_export.Din()
    history, item = torch.randint(0, 1000, (3, 7)), torch.randint(0, 1000, (3,))
    torch.testing.assert_close(network(history.flip(1), item), network(history, item))


def test_sizes_of_open_dimensions_are_within_their_ranges() -> None:
    for network in open_export.NETWORKS.values():
        for dimension, (low, high) in network.ranges.items():
            size = network.some_size(dimension)
            assert low <= size <= high
            assert size % network.multiples.get(dimension, 1) == 0
