"""Tokens of images on disk: written by a model, read by anybody with numpy."""

from typing import TYPE_CHECKING

from driftvq.names import importer
from driftvq.tokens.format import TokenIndex, TokenModel
from driftvq.tokens.reader import Tokens, open_tokens
from driftvq.tokens.writer import TokenWriter

if TYPE_CHECKING:
    from driftvq.tokens.decoding import decode_tokens
    from driftvq.tokens.encoding import encode_images, encode_source, token_model

__all__ = [
    "TokenIndex", "TokenModel", "TokenWriter", "Tokens", "decode_tokens", "encode_images", "encode_source",
    "open_tokens", "token_model",
]  # fmt: skip

__getattr__ = importer(__name__, decoding="decode_tokens", encoding="encode_images encode_source token_model")
"""Tokens can be read without loading torch; what needs a model is imported on first use."""
