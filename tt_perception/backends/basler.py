"""Basler cameras through pypylon (optional: `pip install pypylon`), also its emulated ones (PYLON_CAMEMU)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tt_perception.backends.base import (
    CameraFeatures,
    CameraLostError,
    CameraSettings,
    CameraSetupError,
    Frame,
    StampSource,
)
from tt_perception.backends.clock import ClockMap

_READOUT_NS = 6_000_000  # usual time from the end of exposure to arrival over USB 3 at 1 MP


class BaslerBackend:
    """One Basler camera.

    Args:
        settings: `device` is the serial number; empty takes the only camera there is.
        now_ns: node clock.
    """

    features = CameraFeatures(True, StampSource.DEVICE, ("free", "hardware", "software"))

    def __init__(self, settings: CameraSettings, now_ns: Callable[[], int]) -> None:
        self._settings = settings
        self._now_ns = now_ns
        self._pylon: Any = None
        self._camera: Any = None
        self._tick_ns = 1.0
        exposure_ns = round(settings.exposure_s * 1e9)
        delay_ns = round(settings.delay_s * 1e9) or exposure_ns + _READOUT_NS
        self._clock = ClockMap(min_delay_ns=delay_ns)

    def open(self) -> str:
        """Find the camera, set it up, start grabbing.

        Raises:
            CameraSetupError: pypylon is missing, the serial number is not unique, or a setting is refused.
            CameraLostError: no such camera now.
        """
        self._pylon = _import_pylon()
        factory = self._pylon.TlFactory.GetInstance()
        devices = factory.EnumerateDevices()
        serials = [device.GetSerialNumber() for device in devices]
        wanted = self._settings.device
        if not devices or (wanted and wanted not in serials):
            found = ", ".join(serials) or "none"
            raise CameraLostError(f"no Basler camera {wanted!r}; connected: {found}")
        if not wanted and len(devices) > 1:
            raise CameraSetupError(
                f"several Basler cameras ({', '.join(serials)}); name one serial number as device"
            )
        if wanted and serials.count(wanted) > 1:
            raise CameraSetupError(
                f"serial number {wanted!r} is there {serials.count(wanted)} times; unplug one"
            )
        device = devices[serials.index(wanted) if wanted else 0]
        try:
            self._camera = self._pylon.InstantCamera(factory.CreateDevice(device))
            self._camera.Open()
            self._configure(self._camera)
            self._camera.MaxNumBuffer.Value = 8
            self._camera.StartGrabbing(self._pylon.GrabStrategy_OneByOne)
        except self._pylon.RuntimeException as error:
            self.close()
            raise CameraLostError(f"Basler {wanted or serials[0]}: {_first_line(error)}") from error
        return f"Basler {device.GetModelName()} {device.GetSerialNumber()}"

    def _configure(self, camera: Any) -> None:
        s = self._settings
        _set(camera, "PixelFormat", "Mono8" if s.pixel_format == "mono" else "BGR8Packed", "BGR8")
        if s.width and s.height:
            _set(camera, "Width", s.width)
            _set(camera, "Height", s.height)
            if (camera.Width.Value, camera.Height.Value) != (s.width, s.height):
                raise CameraSetupError(
                    f"Basler: gives {camera.Width.Value}×{camera.Height.Value} px, not {s.width}×{s.height}"
                )
        if s.exposure_s > 0.0:
            _set(camera, "ExposureAuto", "Off", optional=True)
            if not (_has(camera, "ExposureTime") and _set(camera, "ExposureTime", s.exposure_s * 1e6)):
                _set(camera, "ExposureTimeAbs", s.exposure_s * 1e6, optional=True)
        if s.gain >= 0.0:
            _set(camera, "GainAuto", "Off", optional=True)
            if not (_has(camera, "Gain") and _set(camera, "Gain", s.gain, optional=True)):
                _set(camera, "GainRaw", int(s.gain), optional=True)
        if s.trigger == "free":
            _set(camera, "TriggerMode", "Off", optional=True)
            _set(camera, "AcquisitionFrameRateEnable", True, optional=True)
            if not (
                _has(camera, "AcquisitionFrameRate")
                and _set(camera, "AcquisitionFrameRate", s.fps, optional=True)
            ):
                _set(camera, "AcquisitionFrameRateAbs", s.fps, optional=True)
        else:
            _set(camera, "TriggerSelector", "FrameStart")
            _set(camera, "TriggerMode", "On")
            _set(camera, "TriggerSource", "Line1" if s.trigger == "hardware" else "Software")
        if _has(camera, "GevTimestampTickFrequency"):
            self._tick_ns = 1e9 / float(camera.GevTimestampTickFrequency.Value)

    def read(self, timeout_s: float) -> Frame | None:
        """Next frame; with the software trigger this is what starts the exposure.

        Raises:
            CameraLostError: the camera was unplugged.
        """
        camera, pylon = self._camera, self._pylon
        if camera is None:
            raise CameraLostError("the camera is not open")
        try:
            if camera.IsCameraDeviceRemoved():
                raise CameraLostError(f"Basler {self._settings.device!r} was unplugged")
            if self._settings.trigger == "software":
                ready = camera.WaitForFrameTriggerReady(
                    max(int(timeout_s * 1e3), 1), pylon.TimeoutHandling_Return
                )
                if not ready:
                    return None
                camera.ExecuteSoftwareTrigger()
            result = camera.RetrieveResult(max(int(timeout_s * 1e3), 1), pylon.TimeoutHandling_Return)
        except pylon.GenericException as error:
            raise CameraLostError(f"Basler {self._settings.device!r}: {_first_line(error)}") from error
        if not result.IsValid():
            return None
        arrival = self._now_ns()
        try:
            if not result.GrabSucceeded():
                return None
            image = result.Array.copy()
            device_ns = round(result.TimeStamp * self._tick_ns)
            counter = int(result.ImageNumber)
        finally:
            result.Release()
        exposure_ns = round(self._settings.exposure_s * 1e9)
        if device_ns > 0:
            # Basler stamps the start of the exposure.
            mapped = self._clock.update(device_ns, arrival)
            stamp = mapped.stamp_ns + exposure_ns // 2
            return Frame(image, stamp, StampSource.DEVICE, mapped.sigma_ns, arrival, counter, exposure_ns)
        delay_ns = round(self._settings.delay_s * 1e9) or exposure_ns // 2 + _READOUT_NS
        return Frame(image, arrival - delay_ns, StampSource.ARRIVAL, 3_000_000, arrival, counter, exposure_ns)

    def close(self) -> None:
        """Stop grabbing and close the device."""
        camera, self._camera = self._camera, None
        if camera is None:
            return
        try:
            if camera.IsGrabbing():
                camera.StopGrabbing()
            camera.Close()
        except Exception:  # an unplugged camera cannot be closed in order
            return


def _import_pylon() -> Any:
    try:
        from pypylon import pylon
    except ImportError as error:
        raise CameraSetupError("Basler cameras need pypylon: pip install pypylon") from error
    return pylon


def _has(camera: Any, name: str) -> bool:
    try:
        return bool(getattr(camera, name).IsWritable())
    except Exception:
        return False


def _set(camera: Any, name: str, *values: Any, optional: bool = False) -> bool:
    """Set a feature to the first value it accepts."""
    for value in values:
        try:
            getattr(camera, name).Value = value
            return True
        except Exception:
            continue
    if optional:
        return False
    raise CameraSetupError(
        f"Basler: {name} cannot be set to {values[0]!r}; see the feature list of the model"
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
