"""Steps of decoders that write one token, for `benchmarks.zoo_export`.

A step takes a token and the keys and values of the tokens before it. Its outputs are the scores of
the next token, and the keys and values of all tokens, the new one included. The networks come from
the package `transformers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class DecoderStep(nn.Module):
    """A step of a language model.

    Parameters
    ----------
    network: a network of `transformers` that has only a decoder, such as `Qwen2ForCausalLM`.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, token: Tensor, mask: Tensor, position: Tensor, *past: Tensor) -> Any:
        """Compute the step.

        Parameters
        ----------
        token: int64 of shape (batch, 1).
        mask: int64 of shape (batch, past tokens + 1); 0 hides a token.
        position: place of the token in the text, int64 of shape (batch, 1).
        past: keys and values of each layer in turn, of shape (batch, heads, past tokens, width).
        """
        found = self.network(
            input_ids=token, attention_mask=mask, position_ids=position,
            past_key_values=_cache(past), use_cache=True,
        )  # fmt: skip
        return found.logits, *_keys_and_values(found.past_key_values)


class EncoderDecoderStep(nn.Module):
    """A step of the decoder of a network that has an encoder too.

    Parameters
    ----------
    network: a network of `transformers` such as `T5ForConditionalGeneration`.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, token: Tensor, *past: Tensor) -> Any:
        """Compute the step.

        Parameters
        ----------
        token: int64 of shape (batch, 1).
        past: keys and values of each layer in turn, of shape (batch, heads, tokens, width). The
            first half is of the decoder's own tokens; the second half is of the encoder's output.
        """
        from transformers import EncoderDecoderCache

        own, crossed = past[: len(past) // 2], past[len(past) // 2 :]
        # The keys and values of the encoder's output are inputs. So the step reads only the shape
        # of the encoder's output, and zeros can stand for its numbers.
        encoded = torch.zeros(token.shape[0], crossed[0].shape[2], self.network.config.d_model)
        found = self.network(
            decoder_input_ids=token, encoder_outputs=(encoded,),
            past_key_values=EncoderDecoderCache(_cache(own), _cache(crossed)), use_cache=True,
        )  # fmt: skip
        return found.logits, *_keys_and_values(found.past_key_values.self_attention_cache)


def keys_and_values(
    batch: int, *, layers: int, heads: int, tokens: int, width: int
) -> tuple[Tensor, ...]:
    """Random keys and values of each layer in turn, of shape (batch, heads, tokens, width)."""
    return tuple(torch.randn(batch, heads, tokens, width) for _ in range(2 * layers))


def _cache(past: Sequence[Tensor]) -> Any:
    """The cache of `transformers` with the keys and values `past` of each layer in turn."""
    from transformers import DynamicCache

    return DynamicCache(list(zip(past[::2], past[1::2], strict=True)))


def _keys_and_values(cache: Any) -> list[Tensor]:
    return [x for layer in cache.layers for x in (layer.keys, layer.values)]
