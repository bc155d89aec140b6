"""What a network is given and what it answers: the facts that a data set hands to training, files and exports."""

from dataclasses import dataclass

from sca_search.config.names import Kind


@dataclass(frozen=True)
class InputSpec:
    """The input of a network and its normalisation, and the outputs that the targets require."""

    input_shape: tuple[int, ...]  # channels first: (channels, height, width) of images
    classes: tuple[str, ...]  # names of the outputs: classes, labels, or the values of a regression
    mean: tuple[float, ...] = ()  # per channel, of the training split before normalisation; (): not normalised
    std: tuple[float, ...] = ()  # 1 for a constant channel
    kind: Kind = "classes"
    target_mean: tuple[float, ...] = ()  # of a regression's targets before they were standardised; (): they were not
    target_std: tuple[float, ...] = ()  # exported files answer in the user's units, answer · std + mean

    @property
    def is_image(self) -> bool:
        """Whether inputs are channels, height and width."""
        return len(self.input_shape) == 3

    @property
    def is_standardised(self) -> bool:
        """Whether targets were standardised, so that answers must be converted to the user's units."""
        return bool(self.target_std)
