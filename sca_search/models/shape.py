"""The shape of an input, and the smallest image that a network can take."""

from sca_search.errors import ModelError

Shape = tuple[int, int, int]
"""(channels, height, width)"""


def require_pixels(model: str, shape: Shape, least: int) -> None:
    """Refuse an image that would shrink to nothing on its way through the network."""
    _, height, width = shape
    if min(height, width) < least:
        raise ModelError(
            f"model {model}: the input must be at least {least}x{least} pixels (height x width), got {height}x{width}"
        )
