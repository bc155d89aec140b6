"""The specification of a network's input and output, which data sets pass to training, files and exports."""

from dataclasses import dataclass

from sca_search.config.names import Kind


@dataclass(frozen=True)
class InputSpec:
    """The input of a network and its normalization, and the outputs that the targets require."""

    input_shape: tuple[int, ...]  # channels first: (channels, height, width) of images
    classes: tuple[str, ...]  # names of the outputs: classes, labels, or the values of a regression
    mean: tuple[float, ...] = ()  # per channel, of the training split before normalization; (): not normalized
    std: tuple[float, ...] = ()  # 1 for a constant channel
    kind: Kind = "classes"
    target_mean: tuple[float, ...] = ()  # of a regression's targets before they were standardized; (): they were not
    target_std: tuple[float, ...] = ()  # outputs of exported files are in the user's units: output · std + mean

    @property
    def is_image(self) -> bool:
        """Whether inputs are channels, height and width."""
        return len(self.input_shape) == 3

    @property
    def is_standardized(self) -> bool:
        """Whether targets were standardized, so that outputs must be converted to the user's units."""
        return bool(self.target_std)
