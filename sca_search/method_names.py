"""The methods by name, one line each: what their weights are, where they are, and what they can choose.

A method that does not plan its sparsity ends where it lands. One with a strength adds a term to the loss, and a study
searches how strong it is.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["{-1,0,+1}", "{-1,+1}", "{-a,0,+a}", "{-a,+a}", "{-a,0,+b}", "float"]
SCA = "sca"


@dataclass(frozen=True)
class MethodName:
    """What is known of a method before torch is loaded."""

    weights: Kind
    place: str  # module.Class in sca_search.methods
    plans_sparsity: bool = False
    strength: tuple[float, float, float] | None = None  # dimensionless: lowest, highest, first tried


METHODS = {
    SCA: MethodName("{-1,0,+1}", "sca.Sca", plans_sparsity=True),
    "straight-through": MethodName("{-1,0,+1}", "straight_through.StraightThrough", plans_sparsity=True),
    "tang": MethodName("{-1,0,+1}", "tang.Tang", strength=(0.001, 10.0, 0.03)),
    "lr-net": MethodName("{-1,0,+1}", "lr_net.LrNet"),
    "twn": MethodName("{-a,0,+a}", "twn.Twn"),
    "bnn-plus-l1": MethodName("{-a,0,+a}", "bnn_plus.BnnPlusL1", strength=(0.001, 10.0, 0.03)),
    "bnn-plus-l2": MethodName("{-a,0,+a}", "bnn_plus.BnnPlusL2", strength=(0.001, 10.0, 0.03)),
    "inq": MethodName("{-a,0,+a}", "inq.Inq"),
    "elb": MethodName("{-a,0,+a}", "elb.Elb", strength=(0.1, 100.0, 3.0)),
    "ttq": MethodName("{-a,0,+b}", "ttq.Ttq", plans_sparsity=True),
    "binary-connect": MethodName("{-1,+1}", "binary_connect.BinaryConnect"),
    "bayes-binn": MethodName("{-1,+1}", "bayes_binn.BayesBinn"),
    "bwn": MethodName("{-a,+a}", "bwn.Bwn"),
    "dorefa": MethodName("{-a,+a}", "dorefa.Dorefa"),
    "full-precision": MethodName("float", "full_precision.FullPrecision"),
}
# Of the paper's competitors, those that are not here, with the reason.
NOT_DONE = {
    "elq": "its published update joins three terms whose weights and order we could not establish well enough",
}
