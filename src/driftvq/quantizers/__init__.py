"""Quantizers: one file per method, behind one contract."""

from driftvq.quantizers.bridge_vq import BridgeVQ
from driftvq.quantizers.cvq import CVQ
from driftvq.quantizers.diveq import DiVeQ, SFDiVeQ
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
from driftvq.quantizers.fsq import FSQ
from driftvq.quantizers.grouped_vq import GroupedVQ
from driftvq.quantizers.lfq import BSQ, LFQ
from driftvq.quantizers.multi_scale_vq import MultiScaleVQ
from driftvq.quantizers.ns_vq import NSVQ
from driftvq.quantizers.ns_vq_paper import NSVQDeltaE, NSVQPaper, NSVQPublished, NSVQSequel
from driftvq.quantizers.opt_vq import OptVQ
from driftvq.quantizers.quantizer import Quantizer
from driftvq.quantizers.registry import QUANTIZERS, make_quantizer, register
from driftvq.quantizers.residual_vq import ResidualVQ
from driftvq.quantizers.scored_vq import IBQ, GumbelVQ
from driftvq.quantizers.sim_vq import SimVQ
from driftvq.quantizers.steps import Details, LossTerms, QuantizerOutput
from driftvq.quantizers.trans_vq import TransVQ
from driftvq.quantizers.trans_vq_paper import TransVQPaper, TransVQPublished
from driftvq.quantizers.vq import VQ, FactorizedVQ
from driftvq.quantizers.wasserstein_vq import WassersteinVQ

__all__ = [
    "BSQ",
    "CVQ",
    "EMAVQ",
    "ESTIMATORS",
    "FSQ",
    "IBQ",
    "LFQ",
    "NSVQ",
    "QUANTIZERS",
    "VQ",
    "BridgeVQ",
    "CosineEMAVQ",
    "Details",
    "DiVeQ",
    "Directional",
    "Estimator",
    "FactorizedVQ",
    "GroupedVQ",
    "Gumbel",
    "GumbelVQ",
    "LossTerms",
    "Modified",
    "MultiScaleVQ",
    "NSVQDeltaE",
    "NSVQPaper",
    "NSVQPublished",
    "NSVQSequel",
    "OptVQ",
    "Quantizer",
    "QuantizerOutput",
    "ResidualVQ",
    "Rotation",
    "SFDiVeQ",
    "Sampled",
    "SimVQ",
    "SpaceFilling",
    "StraightThrough",
    "TransVQ",
    "TransVQPaper",
    "TransVQPublished",
    "WassersteinVQ",
    "make_quantizer",
    "register",
]
