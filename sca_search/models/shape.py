"""The shape of an input, and the smallest image that a network can take."""

from sca_search.errors import ModelError

Shape = tuple[int, ...]
"""(channels, height, width) for images; (channels, length), (channels, depth, height, width), (features,)"""


def require_maps(model: str, shape: Shape) -> None:
    """Refuse an input that is no image."""
    if len(shape) != 3:
        raise ModelError(
            f"model {model}: takes images (channels, height, width), the data's shape is {tuple(shape)}; "
            "a network of your own is given as file.py:function"
        )


def require_pixels(model: str, shape: Shape, least: int) -> None:
    """Refuse an image that would shrink to nothing on its way through the network."""
    _, height, width = shape
    if min(height, width) < least:
        raise ModelError(
            f"model {model}: the input must be at least {least}x{least} pixels (height x width), got {height}x{width}"
        )
