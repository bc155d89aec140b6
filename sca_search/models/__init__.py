"""The networks of the paper and a small one for 8×8 digits, by name; and loaders of any other network.

A name with a colon is another network: `torchvision:NAME`, `timm:NAME`, `file.py:function`, `package:function`.
"""

from sca_search.models.builtin import MODELS, Builder, Shape, build_model
from sca_search.models.prepare import find_maker
from sca_search.models.user import Maker, maker_of

__all__ = ["MODELS", "Builder", "Maker", "Shape", "build_model", "find_maker", "maker_of"]
