"""The hardware file of a real robot: its cameras with their drivers and serial numbers, and its motor bus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tt_bringup.graph_errors import GraphError
from tt_bringup.names import nearest
from tt_bringup.paths import shared_file

DEFAULT = "config/hardware/example.yaml"
_KEYS = ("calibration", "cameras", "motors")


@dataclass(frozen=True)
class Hardware:
    """Contents of a hardware file.

    Attributes:
        calibration: camera calibration file, absolute; empty for the simulated cameras.
        cameras: camera name to the parameters of its camera_node.
        motors: parameters of motor_node.
    """

    calibration: str
    cameras: Mapping[str, Mapping[str, Any]]
    motors: Mapping[str, Any]

    def selected(self, names: str) -> tuple[str, ...]:
        """The cameras to use.

        Args:
            names: camera names separated by commas; empty for all.

        Raises:
            GraphError: a name is not in the file.
        """
        chosen = tuple(name.strip() for name in names.split(",") if name.strip())
        for name in chosen:
            if name not in self.cameras:
                raise GraphError(nearest(name, self.cameras, "camera of the hardware file"))
        return chosen or tuple(self.cameras)


def load_hardware(path: str) -> Hardware:
    """Reads a hardware file; the shipped example when the path is empty.

    Raises:
        GraphError: missing, not YAML, or a wrong shape; says where.
    """
    import yaml

    file = Path(path) if path else shared_file(DEFAULT)
    try:
        tree = yaml.safe_load(file.read_text())
    except OSError as error:
        raise GraphError(f"hardware file {file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise GraphError(f"hardware file {file} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict) or not tree:
        raise GraphError(f"hardware file {file} must hold {', '.join(_KEYS)}; {DEFAULT} is an example")
    for key in tree:
        if key not in _KEYS:
            raise GraphError(f"hardware file {file}: {nearest(str(key), _KEYS, 'section')}")
    cameras, motors = tree.get("cameras") or {}, tree.get("motors") or {}
    if not isinstance(cameras, dict) or not all(isinstance(entry, dict) for entry in cameras.values()):
        raise GraphError(f"hardware file {file}: cameras must map each camera name to its parameters")
    if not isinstance(motors, dict):
        raise GraphError(f"hardware file {file}: motors must map parameter names to values")
    calibration = str(tree.get("calibration") or "")
    if calibration and not Path(calibration).is_absolute():
        calibration = str((file.parent / calibration).resolve())
    return Hardware(calibration, {str(name): entry for name, entry in cameras.items()}, motors)
