"""Tokens of images on disk: written by a model, read by anybody with numpy."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from driftvq.tokens.index import TokenIndex, TokenModel
from driftvq.tokens.store import Tokens, open_tokens
from driftvq.tokens.writer import TokenWriter

if TYPE_CHECKING:
    from driftvq.tokens.coding import token_model
    from driftvq.tokens.decoding import decode_tokens
    from driftvq.tokens.encoding import encode_images, encode_source

__all__ = [
    "TokenIndex",
    "TokenModel",
    "TokenWriter",
    "Tokens",
    "decode_tokens",
    "encode_images",
    "encode_source",
    "open_tokens",
    "token_model",
]

_MODULES = {
    "decode_tokens": "decoding",
    "encode_images": "encoding",
    "encode_source": "encoding",
    "token_model": "coding",
}


def __getattr__(name: str) -> Any:
    """Import what needs a model on first use, so that tokens can be read without loading torch."""
    if name in _MODULES:
        return getattr(import_module(f"driftvq.tokens.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'driftvq.tokens' has no attribute {name!r}")
