"""Quantizers: one file per method, behind one contract."""

from driftvq.quantizers.base import Quantizer
from driftvq.quantizers.bridge_vq import BridgeVQ
from driftvq.quantizers.bsq import BSQ
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
from driftvq.quantizers.factorized_vq import FactorizedVQ
from driftvq.quantizers.fsq import FSQ
from driftvq.quantizers.grouped_vq import GroupedVQ
from driftvq.quantizers.gumbel_vq import GumbelVQ
from driftvq.quantizers.ibq import IBQ
from driftvq.quantizers.lfq import LFQ
from driftvq.quantizers.multi_scale_vq import MultiScaleVQ
from driftvq.quantizers.ns_vq import NSVQ
from driftvq.quantizers.ns_vq_delta_e import NSVQDeltaE
from driftvq.quantizers.ns_vq_paper import NSVQPaper
from driftvq.quantizers.ns_vq_published import NSVQPublished
from driftvq.quantizers.ns_vq_sequel import NSVQSequel
from driftvq.quantizers.opt_vq import OptVQ
from driftvq.quantizers.registry import QUANTIZERS, make_quantizer, register
from driftvq.quantizers.residual_vq import ResidualVQ
from driftvq.quantizers.sim_vq import SimVQ
from driftvq.quantizers.steps import Details, LossTerms, QuantizerOutput
from driftvq.quantizers.trans_vq import TransVQ
from driftvq.quantizers.trans_vq_paper import TransVQPaper
from driftvq.quantizers.trans_vq_published import TransVQPublished
from driftvq.quantizers.vq import VQ
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
