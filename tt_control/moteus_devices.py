"""Opens the adapters of the moteus library, and says what to do when that fails."""

from __future__ import annotations

import errno
import fcntl
import importlib
import os
import stat
from collections.abc import Sequence
from typing import Any

from moteus.fdcanusb_device import FdcanusbDevice

from tt_control.errors import BusError

TRANSPORTS = ("fdcanusb", "uart", "socketcan", "python-can", "pi3hat")
# Those that both Linux and the boards can do.
BAUD_RATES = (115200, 230400, 460800, 500000, 576000, 921600, 1000000, 1500000, 2000000, 3000000)
UDEV_RULE = (
    'SUBSYSTEM=="tty", ATTRS{idVendor}=="0483", ATTRS{idProduct}=="5740", MODE="0666", SYMLINK+="fdcanusb"'
)
# A write blocks for ever when the adapter does not read and the kernel buffer is full; the library sets no
# bound. The time is far above any scheduling delay, because pyserial raises for those too.
WRITE_TIMEOUT_S = 0.1


def open_devices(transport: str, device: str) -> list[Any]:
    """Opens the adapters; must run inside the event loop that will use them.

    Args:
        transport: one of `TRANSPORTS`.
        device: fdcanusb and uart: serial path, several separated by commas, empty to search; uart is a serial
            line straight to a board, with checksums, at the baud rate of `path@baud` (921600 without); socketcan:
            interface such as can0; python-can: `interface:channel`; pi3hat: empty.

    Raises:
        BusError: missing, forbidden, busy or not installed; the text says how to fix it.
    """
    if transport in ("fdcanusb", "uart"):
        return _open_serial(device, has_checksums=transport == "uart")
    if transport in ("socketcan", "python-can"):
        return _open_python_can(transport, device)
    if transport == "pi3hat":
        return _open_pi3hat()
    raise BusError(f"motor transport {transport!r} is unknown; allowed are {', '.join(TRANSPORTS)}")


def _open_serial(device: str, has_checksums: bool) -> list[Any]:
    paths = [path.strip() for path in device.split(",") if path.strip()]
    if not paths:
        paths = FdcanusbDevice.detect_fdcanusbs()
    if not paths:
        raise BusError(
            "no fdcanusb adapter found; plug it in, or give its path, for example --device /dev/ttyACM0 "
            "(motor_node: parameter device)"
        )
    opened: list[Any] = []
    try:
        for path in paths:
            opened.append(_open_one_serial(path, has_checksums))
    except BusError:
        for one in opened:
            one.close()
        raise
    return opened


def _open_one_serial(path: str, has_checksums: bool) -> Any:
    baud_rate = None
    if has_checksums and "@" in path:
        path, _, words = path.rpartition("@")
        if not words.isdecimal() or int(words) not in BAUD_RATES:
            raise BusError(
                f"baud rate {words!r} of {path} is none of {', '.join(map(str, BAUD_RATES))}; "
                "give the one that the board's serial port is set to"
            )
        baud_rate = int(words)
    try:
        if not stat.S_ISCHR(os.stat(path).st_mode):
            raise BusError(f"{path} is not a serial device; give the path of the motor adapter")
        opened = FdcanusbDevice(path, baudrate=baud_rate)
    except OSError as error:  # also serial.SerialException
        raise BusError(_explain(path, error)) from None
    if not has_checksums:
        # The library knows an fdcanusb by its USB ids only, and computes checksums in Python for every other
        # path: 0.25 ms a cycle. USB has its own; an adapter that wants them all the same says so, and the
        # library obeys.
        opened._is_fdcanusb, opened._checksum_active = True, False
    port = opened._serial.serial
    port.write_timeout = WRITE_TIMEOUT_S
    try:
        fcntl.flock(port.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        opened.close()
        raise BusError(f"{path} is used by another process; end it first (fuser {path} shows it)") from None
    return opened


def _explain(path: str, error: OSError) -> str:
    number = error.errno
    if number == errno.ENOENT:
        return f"motor adapter {path} does not exist; plug it in, or correct the path"
    if number in (errno.EACCES, errno.EPERM):
        return (
            f"no permission to open {path}; put this line into /etc/udev/rules.d/70-fdcanusb.rules, run "
            f"'udevadm control --reload' and plug the adapter in again: {UDEV_RULE}"
        )
    if number == errno.EBUSY:
        return f"{path} is busy; end the process that uses it (fuser {path} shows it)"
    if number in (errno.EIO, errno.ENXIO, errno.ENODEV):
        return f"{path} is gone or not working; plug the adapter in again"
    return f"{path} cannot be opened: {error.strerror or error}"


def _open_python_can(transport: str, device: str) -> list[Any]:
    interface, _, channel = device.rpartition(":")
    if transport == "socketcan":
        interface = interface or "socketcan"
    if not interface or not channel:
        raise BusError(
            f"device {device!r} does not name a CAN channel; give can0 for socketcan, "
            "interface:channel for python-can, for example pcan:PCAN_USBBUS1"
        )
    try:
        importlib.import_module("can")
    except ImportError:
        raise BusError("CAN adapters need the package python-can: pip install python-can") from None
    import can
    from moteus.pythoncan_device import PythonCanDevice

    try:
        return [PythonCanDevice(interface=interface, channel=channel, fd=True)]
    except (OSError, ValueError, can.CanError) as error:
        raise BusError(
            f"CAN channel {channel} of {interface} cannot be opened ({str(error).splitlines()[0]}); bring it up with "
            f"'ip link set {channel} up type can bitrate 1000000 dbitrate 5000000 fd on'"
        ) from None


def _open_pi3hat() -> list[Any]:
    try:
        importlib.import_module("moteus_pi3hat")
    except ImportError:
        raise BusError(
            "the pi3hat needs its driver on the Raspberry Pi: pip install moteus-pi3hat; run as root"
        ) from None
    from moteus.transport_factory import get_transport_factories

    factories = [f for f in get_transport_factories() if f.name == "pi3hat"]
    if not factories:
        raise BusError("moteus-pi3hat is installed but offers no transport; install version 0.4 or newer")
    try:
        devices: Sequence[Any] = factories[0](None)
    except Exception as error:
        raise BusError(f"the pi3hat cannot be opened: {str(error).splitlines()[0]}; run as root") from None
    return list(devices)
