"""Quantizers behind one contract: one file per method, or for methods of one kind.

Names of tensors end in their shapes: n latents (all positions of the batch), k codes, d dimensions, q indices of each.
Unless said otherwise, ``dim``, ``codebook_dim`` and ``channel_first`` are those of :class:`Quantizer`, and the
``options`` of a quantizer with a codebook those of :class:`driftvq.quantizers.codebook.CodebookQuantizer`.
"""

from driftvq.quantizers.cvq import CVQ
from driftvq.quantizers.ema_vq import EMAVQ, CosineEMAVQ
from driftvq.quantizers.estimators import (
    ESTIMATORS,
    Directional,
    Estimator,
    Gumbel,
    Modified,
    Rotation,
    Sampled,
    SpaceFilling,
    StraightThrough,
)
from driftvq.quantizers.fixed_grids import BSQ, FSQ, LFQ
from driftvq.quantizers.grouped_vq import GroupedVQ
from driftvq.quantizers.multi_scale_vq import MultiScaleVQ
from driftvq.quantizers.ns_vq import NSVQ
from driftvq.quantizers.ns_vq_paper import NSVQDeltaE, NSVQPaper, NSVQPublished, NSVQSequel
from driftvq.quantizers.quantizer import QUANTIZERS, Quantizer, make_quantizer, register
from driftvq.quantizers.residual_vq import ResidualVQ
from driftvq.quantizers.scored_vq import IBQ, GumbelVQ
from driftvq.quantizers.steps import Details, LossTerms, QuantizerOutput
from driftvq.quantizers.trans_vq import TransVQ
from driftvq.quantizers.transformed_vq import BridgeVQ, SimVQ, TransVQPaper, TransVQPublished
from driftvq.quantizers.transport_vq import OptVQ, WassersteinVQ
from driftvq.quantizers.vq import VQ, DiVeQ, FactorizedVQ, SFDiVeQ

__all__ = [
    "BSQ", "CVQ", "EMAVQ", "ESTIMATORS", "FSQ", "IBQ", "LFQ", "NSVQ", "QUANTIZERS", "VQ", "BridgeVQ", "CosineEMAVQ",
    "Details", "DiVeQ", "Directional", "Estimator", "FactorizedVQ", "GroupedVQ", "Gumbel", "GumbelVQ", "LossTerms",
    "Modified", "MultiScaleVQ", "NSVQDeltaE", "NSVQPaper", "NSVQPublished", "NSVQSequel", "OptVQ", "Quantizer",
    "QuantizerOutput", "ResidualVQ", "Rotation", "SFDiVeQ", "Sampled", "SimVQ", "SpaceFilling", "StraightThrough",
    "TransVQ", "TransVQPaper", "TransVQPublished", "WassersteinVQ", "make_quantizer", "register",
]  # fmt: skip
