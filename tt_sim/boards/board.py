"""One simulated moteus board: registers, modes, latched faults, watchdog, measurement and heat.

The behaviour follows the vendor's register reference and the notes in `config.py`; numbers are revolutions of
the output shaft, N m at the output shaft, seconds, volts, degrees Celsius. The board is a pure object: frames
and time come in, torque goes out. It holds no thread, no device and no clock of its own.
"""

import hashlib
import math
import random
from collections.abc import Callable
from typing import Any

from tt_sim.boards import registers as reg
from tt_sim.boards.config import DEFAULTS, BoardSpec
from tt_sim.boards.control_law import (
    ENABLING,
    FAULT,
    NAN,
    POSITION,
    STAY_WITHIN,
    STOPPED,
    TIMEOUT,
    TWO_PI,
    ZERO_VELOCITY,
    Command,
    ControlLaw,
)
from tt_sim.boards.frames import READ_ONLY, UNKNOWN_REGISTER, WRITE_ERROR, write_varuint
from tt_sim.boards.registers import Fault

NOISE_LENGTH = 4093  # prime, so that boards sampled together do not repeat together
UNDER_VOLTAGE_V = 4.0
COMMANDABLE = {0, 5, 6, 7, 8, 9, 10, 12, 13, 15}
TORQUE_LESS = {0, 1, 2, 3, 4}


class Board(ControlLaw):
    """Register-level model of one board.

    Attributes named in `registers.READABLE` are what the registers show. `power_w` is the electrical power
    the board took from its supply in the last step (negative while it brakes), used by the supply model.
    """

    def __init__(self, spec: BoardSpec, place: int = 0) -> None:
        self.spec = spec
        self.key: int | str = spec.id if spec.motor is None else spec.motor
        digest = hashlib.sha256(
            f"tt board {spec.serial if spec.serial is not None else (spec.id, place)}".encode()
        )
        self.uuid = digest.digest()[:16]
        words = [int.from_bytes(digest.digest()[i : i + 4], "little", signed=True) for i in range(0, 32, 4)]
        self.uuid_1, self.uuid_2, self.uuid_3, self.uuid_4 = words[:4]
        self.serial_number_1, self.serial_number_2, self.serial_number_3 = words[4:7]
        self.uuid_mask_capable = 1
        self.model_number = 0x00000A06
        self.firmware_version = spec.firmware
        self.register_map_version = 6
        self.flash = spec.initial_config()
        self.config = dict(self.flash)

        rng = random.Random((spec.seed << 8) + spec.id + place * 7919)
        self._noise = [rng.gauss(0.0, 1.0) for _ in range(NOISE_LENGTH)] if self._is_noisy() else None
        self._noise_at = rng.randrange(NOISE_LENGTH)
        self._true_position = NAN
        self._offset = 0.0  # added to the plant's position: set at power-up, changed by "set output"

        self.abs_position = NAN
        self.no_encoder = NAN
        self.gpio = 0
        self.clock_trim = 0
        self.voltage = 24.0
        self.temperature = self.motor_temperature = spec.ambient_c
        self.position = self.velocity = 0.0
        self.encoder_position = self.encoder_velocity = 0.0
        self.encoder_ok = True
        self.driver_fault = False
        self.driver_fault_1 = self.driver_fault_2 = 0
        self.forced_temperature: float | None = None
        self.power_w = 0.0
        self.time_s = 0.0
        self.reset()

    def _is_noisy(self) -> bool:
        return self.spec.encoder_noise_rev > 0 or self.spec.velocity_noise_rev_s > 0

    # ------------------------------------------------------------------ power-up, configuration

    def reset(self) -> None:
        """Power-up: stored configuration, mode stopped, no fault, position kept by the absolute encoder."""
        self.config = dict(self.flash)
        self.mode = STOPPED
        self.fault = 0
        self.home_state = self.spec.home_state
        self._enable_left_s = 0.0
        self._timeout_left_s = NAN
        self.trajectory_complete = 0
        self._command = Command()
        self.torque = self.power = self.power_w = 0.0
        self.q_current = self.d_current = 0.0
        self._clear_control()
        self._clear_terms()
        self.apply_config()
        self._reference()

    def _reference(self) -> None:
        """Position after power-up: an encoder on the rotor knows it within one rotor turn."""
        true = self._true_position
        turn = self._rotor_turn()
        if math.isnan(true) or self.home_state == 2:
            self._offset = 0.0
        elif self.home_state == 1:
            self._offset = -math.floor(true / turn + 0.5) * turn
        else:
            self._offset = -true

    def _rotor_turn(self) -> float:
        """Revolutions of the output per revolution of the rotor."""
        return float(self.config["motor_position.rotor_to_output_ratio"]) or 1.0

    def apply_config(self) -> None:
        """Put the configuration into effect; call after any change of `config`."""
        self.id = int(self.config["id.id"])
        self.prefix = int(self.config["can.prefix"])
        self._configure_law()

    def set_config(self, name: str, value: float | int | bool) -> None:
        """Change one configuration value at once, as `conf set` does; an unknown name raises KeyError."""
        if name not in DEFAULTS:
            raise KeyError(name)
        self.config[name] = value
        self.apply_config()

    # ------------------------------------------------------------------ commands from the bus

    def command(self, command: Command) -> None:
        """Take over a command that arrived complete (end of frame)."""
        mode = command.mode
        if mode == STOPPED:
            self.stop()
            return
        c = self.config
        if command.timeout == 0.0:
            command.timeout = float(c["servo.default_timeout_s"])
        if math.isnan(command.velocity_limit):
            command.velocity_limit = float(c["servo.default_velocity_limit"])
        elif command.velocity_limit < 0.0:
            command.velocity_limit = NAN
        if math.isnan(command.accel_limit):
            command.accel_limit = float(c["servo.default_accel_limit"])
        elif command.accel_limit < 0.0:
            command.accel_limit = NAN
        if math.isnan(command.velocity):
            command.velocity = 0.0
        if not (math.isnan(command.velocity_limit) and math.isnan(command.accel_limit)):
            if math.isnan(command.velocity_limit):
                command.velocity_limit = self._max_velocity
            limit = min(command.velocity_limit, self._max_velocity)
            command.velocity_limit = limit
            command.velocity = min(max(command.velocity, -limit), limit)
            if not math.isnan(command.stop_position):
                self._latch(Fault.STOP_POSITION_DEPRECATED)
        if math.isnan(command.position) and command.velocity and not math.isnan(command.stop_position):
            towards = command.stop_position - self.position
            command.velocity = math.copysign(command.velocity, towards)
        self._command = command
        self._timeout_left_s = command.timeout
        self._target = command.position
        if self.mode == STOPPED:
            self.mode = ENABLING
            self._enable_left_s = self.spec.enable_delay_s
        elif self.mode not in (FAULT, ENABLING, TIMEOUT) and self.mode != mode:
            self._enter(mode)

    def stop(self) -> None:
        """Stopped mode: driver off, latched faults and timeouts cleared, fault code erased."""
        self._command = Command()
        self.mode = STOPPED
        self.fault = 0
        self.driver_fault_1 = self.driver_fault_2 = 0
        self.trajectory_complete = 0
        self.torque = self.q_current = self.d_current = self.power = 0.0
        self._clear_control()
        self._clear_terms()

    def set_output_nearest(self, position: float) -> None:
        """Move the reported position by whole rotor turns so that it is as near as possible to `position`."""
        if math.isfinite(position):
            turn = self._rotor_turn()
            self._shift(round((position - self.position) / turn) * turn)

    def set_output_exact(self, position: float) -> None:
        """Make the reported position exactly `position`."""
        if math.isfinite(position):
            self._shift(position - self.position)

    def _shift(self, by_rev: float) -> None:
        self._offset += by_rev
        self.position += by_rev
        self.encoder_position = self.position
        self.control_position += by_rev
        self.home_state = 2

    def require_reindex(self, _value: float) -> None:
        """Forget the reference: the position counts from 0 again, within one rotor turn."""
        turn = self._rotor_turn()
        self._shift(-math.floor(self.position / turn) * turn)
        self.home_state = 0

    def recapture(self, _value: float) -> None:
        """Start the control position and velocity again from the measured ones."""
        if self.mode == POSITION:
            self.control_position = self.position
            self.control_velocity = self._captured_velocity()
            self._integral = 0.0

    # What the command registers show.
    command_position = property(lambda self: self._command.position)
    command_velocity = property(lambda self: self._command.velocity)
    command_feedforward = property(lambda self: self._command.feedforward)
    command_kp_scale = property(lambda self: self._command.kp_scale)
    command_kd_scale = property(lambda self: self._command.kd_scale)
    command_max_torque = property(lambda self: self._command.max_torque)
    command_stop_position = property(lambda self: self._command.stop_position)
    command_timeout = property(lambda self: self._timeout_left_s)
    command_velocity_limit = property(lambda self: self._command.velocity_limit)
    command_accel_limit = property(lambda self: self._command.accel_limit)
    command_fixed_voltage = property(lambda self: self._command.fixed_voltage)
    command_ilimit_scale = property(lambda self: self._command.ilimit_scale)
    command_fixed_current = property(lambda self: self._command.fixed_current)
    command_ignore_bounds = property(lambda self: self._command.ignore_bounds)
    command_lower_bound = property(lambda self: self._command.lower_bound)
    command_upper_bound = property(lambda self: self._command.upper_bound)
    torque_error = property(lambda self: self.torque - self.control_torque)
    encoder_validity = property(lambda self: 3 if self.encoder_ok else 0)
    millisecond_counter = property(lambda self: int(self.time_s * 1000.0) & 0x7FFFFF)

    @property
    def position_error(self) -> float:
        """Measured minus control position, revolutions; NaN while no control position exists."""
        return self.position - self.control_position

    @property
    def velocity_error(self) -> float:
        """Measured minus control velocity, revolutions per second."""
        return self.velocity - self.control_velocity

    # ------------------------------------------------------------------ control

    def control(self, true_position: float, true_velocity: float, bus_v: float, dt: float) -> float:
        """Advance the board by dt and return the torque it applies during that time.

        Args:
            true_position: position of the output shaft, revolutions.
            true_velocity: velocity of the output shaft, revolutions per second.
            bus_v: supply voltage at the board.
            dt: length of the step in seconds.

        Returns:
            Torque at the output shaft, N m; constant during the step.
        """
        self.time_s += dt
        self._measure(true_position, true_velocity)
        self.voltage = bus_v
        mode = self.mode
        if mode == STOPPED:
            self.power_w = 0.0
            self._heat(0.0, dt)
            return 0.0
        if self._timeout_left_s > 0.0:  # false for NaN: no watchdog
            self._timeout_left_s = max(0.0, self._timeout_left_s - dt)
        if mode == ENABLING:
            self._enable_left_s -= dt
            if self._enable_left_s <= 0.0:
                self._enter(self._command.mode)
        self._check_persistent_faults(bus_v)
        mode = self.mode
        if mode in (POSITION, STAY_WITHIN) and self._timeout_left_s <= 0.0:
            mode = self.mode = TIMEOUT
            self._clear_control()
        if mode in TORQUE_LESS:
            torque = 0.0
            self._no_torque()
        else:
            self.fault = 0
            torque = self._law(mode, dt)
            if self.mode == FAULT:
                torque = 0.0
                self._no_torque()
        current = torque / self._torque_constant
        self.torque = torque
        self.q_current = current
        loss = 1.5 * current * current * self._resistance
        self.power_w = torque * true_velocity * TWO_PI + loss
        self.d_current = 0.0
        if mode in (POSITION, TIMEOUT, ZERO_VELOCITY, STAY_WITHIN) and self.mode != FAULT:
            loss += self._burn(bus_v)
        self.power = self.power_w
        self._heat(loss, dt)
        return torque

    def _burn(self, bus_v: float) -> float:
        """Use the winding as a resistor for returned energy: flux braking and the regeneration limit."""
        burnt = 0.0
        flux = bus_v - self._flux_brake_v
        code = Fault.LIMIT_FLUX_BRAKING
        if flux > 0.0:
            current = min(flux / self._flux_brake_ohm, self._max_current)
            burnt = 1.5 * current * current * self._resistance
        excess = -self.power_w - self._max_regen  # NaN when no limit is set
        if excess > burnt:
            burnt = min(excess, 1.5 * self._max_current**2 * self._resistance)
            code = Fault.LIMIT_REGEN_POWER
        if burnt > 0.0:
            self.d_current = -math.sqrt(burnt / (1.5 * self._resistance))
            self.power_w += burnt
            self.fault = int(code)
        return burnt

    def _measure(self, true_position: float, true_velocity: float) -> None:
        first = math.isnan(self._true_position)
        self._true_position = true_position
        if first:
            self._reference()
        if not self.encoder_ok:
            return  # a lost encoder keeps its last reading
        position = true_position + self._offset
        velocity = true_velocity
        if self._noise is not None:
            at = self._noise_at = (self._noise_at + 2) % NOISE_LENGTH
            position += self._noise[at] * self.spec.encoder_noise_rev
            velocity += self._noise[at - 1] * self.spec.velocity_noise_rev_s
        step = self.spec.encoder_step_rev
        if step > 0.0:
            position = math.floor(position / step + 0.5) * step
        self.position = self.encoder_position = position
        self.velocity = self.encoder_velocity = velocity

    def _enter(self, mode: int) -> None:
        """Start a mode from another active one or at the end of enabling."""
        command = self._command
        if mode in (POSITION, STAY_WITHIN) and not command.ignore_bounds:
            if abs(self._min) > 32768.0 or abs(self._max) > 32768.0:
                self._latch(Fault.INVALID_LIMITS)
                return
            if self.position < self._min or self.position > self._max:
                self._latch(Fault.START_OUTSIDE_LIMIT)
                return
        self.mode = mode
        self._clear_control()
        self._target = command.position

    def _check_persistent_faults(self, bus_v: float) -> None:
        if self.mode in (STOPPED, FAULT):
            return
        c = self.config
        if self.driver_fault:
            self.driver_fault_1 = 1
            self._latch(Fault.MOTOR_DRIVER)
        elif bus_v > c["servo.max_voltage"]:
            self._latch(Fault.OVER_VOLTAGE)
        elif bus_v < UNDER_VOLTAGE_V:
            self._latch(Fault.UNDER_VOLTAGE)
        elif self.temperature > c["servo.fault_temperature"] or (
            c["servo.enable_motor_temperature"]
            and self.motor_temperature > c["servo.motor_fault_temperature"]
        ):
            self._latch(Fault.OVER_TEMPERATURE)

    # ------------------------------------------------------------------ heat

    def _heat(self, loss_w: float, dt: float) -> None:
        """First-order heating of bridge (60 s) and winding (120 s), the order of a real board."""
        ambient = self.spec.ambient_c
        if self.forced_temperature is not None:
            self.temperature = self.forced_temperature
        elif loss_w or self.temperature != ambient:
            self.temperature += dt / 60.0 * (ambient + 0.35 * 0.3 * loss_w - self.temperature)
        if loss_w or self.motor_temperature != ambient:
            self.motor_temperature += dt / 120.0 * (ambient + 0.25 * loss_w - self.motor_temperature)

    # ------------------------------------------------------------------ register writes

    def write(self, registers: list[tuple[int, int]], values: tuple[Any, ...]) -> list[bytes]:
        """Carry out the writes of one frame; commands take effect together at the end of the frame.

        Returns:
            Error subframes for registers that cannot be written.
        """
        command: Command | None = None
        scratch: Command | None = None
        errors: list[bytes] = []
        for (register, resolution), raw in zip(registers, values, strict=True):
            if register == reg.MODE:
                if raw in COMMANDABLE:
                    command = Command(int(raw))
                continue
            known = reg.COMMAND.get(register)
            if known is not None:
                target = command
                if target is None:
                    # Without a mode before them these values belong to no command and are dropped.
                    target = scratch = scratch or Command()
                value = raw if resolution == reg.F32 else reg.from_wire(raw, resolution, known[1])
                setattr(target, known[0], value)
                continue
            action = reg.ACTIONS.get(register)
            if action is not None:
                handler: Callable[[float], None] = getattr(self, action)
                handler(reg.from_wire(raw, resolution, reg.ACTION_SCALES[register]))
            elif register not in reg.ACCEPTED and not reg.UUID_MASK_FIRST <= register <= reg.UUID_MASK_LAST:
                code = READ_ONLY if register in reg.READABLE else UNKNOWN_REGISTER
                errors.append(bytes([WRITE_ERROR]) + write_varuint(register) + bytes([code]))
        if command is not None:
            self.command(command)
        return errors
