"""Density of the air in the room, from what a weather station shows."""

from __future__ import annotations

import math

from tt_perception.errors import TTError

_R_DRY = 287.05  # J/(kg K), gas constant of dry air (ISO 2533)
_R_VAPOUR = 461.5  # J/(kg K), of water vapour


def air_density(temperature_c: float, pressure_pa: float, relative_humidity: float = 0.0) -> float:
    """Density of moist air, kg/m³, as an ideal mixture.

    Saturation pressure after Magnus (WMO-No. 8, 2018, annex 4.B).

    Args:
        temperature_c: −40 … 60 °C. pressure_pa: 50,000 … 110,000 Pa, at the place (not reduced to sea level).
        relative_humidity: 0 … 1.

    Raises:
        TTError: a value out of these ranges, such as a pressure in hPa.
    """
    for text, value, low, high in (
        ("temperature", temperature_c, -40.0, 60.0),
        ("pressure", pressure_pa, 50_000.0, 110_000.0),
        ("relative humidity", relative_humidity, 0.0, 1.0),
    ):
        if not low <= value <= high:
            unit = {"temperature": "°C", "pressure": "Pa"}.get(text, "(0 to 1)")
            raise TTError(f"{text} {value} {unit} is out of range; allowed is {low:g} to {high:g} {unit}")
    kelvin = temperature_c + 273.15
    saturation = 611.2 * math.exp(17.62 * temperature_c / (243.12 + temperature_c))
    vapour = relative_humidity * saturation
    return (pressure_pa - vapour) / (_R_DRY * kelvin) + vapour / (_R_VAPOUR * kelvin)
