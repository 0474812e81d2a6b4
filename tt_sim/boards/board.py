"""One simulated moteus board: command state, modes, faults, limits and the position control law.

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
from tt_sim.boards.config import BOARD_MAX_POWER_W, DEFAULTS, TORQUE_CONSTANT_KV, BoardSpec
from tt_sim.boards.registers import Fault, Mode

NAN = math.nan
TWO_PI = 2.0 * math.pi
NOISE_LENGTH = 4093  # prime, so that boards sampled together do not repeat together
UNDER_VOLTAGE_V = 4.0
STOPPED, FAULT, ENABLING = int(Mode.STOPPED), int(Mode.FAULT), int(Mode.ENABLING)
POSITION, TIMEOUT, ZERO_VELOCITY = int(Mode.POSITION), int(Mode.TIMEOUT), int(Mode.ZERO_VELOCITY)
STAY_WITHIN, BRAKE, CURRENT = int(Mode.STAY_WITHIN), int(Mode.BRAKE), int(Mode.CURRENT)
COMMANDABLE = {0, 5, 6, 7, 8, 9, 10, 12, 13, 15}
TORQUE_LESS = {0, 1, 2, 3, 4}


class Command:
    """One position-mode (or other mode) command with the defaults that omitted registers have."""

    __slots__ = (
        "accel_limit",
        "d_current",
        "d_voltage",
        "feedforward",
        "fixed_current",
        "fixed_voltage",
        "ignore_bounds",
        "ilimit_scale",
        "kd_scale",
        "kp_scale",
        "lower_bound",
        "max_torque",
        "mode",
        "position",
        "q_current",
        "q_voltage",
        "stop_position",
        "timeout",
        "upper_bound",
        "velocity",
        "velocity_limit",
    )  # fmt: skip

    def __init__(self, mode: int = STOPPED) -> None:
        self.mode = mode
        self.position = 0.0  # an omitted position is zero, not "hold": the vendor's trap, kept
        self.velocity = 0.0
        self.feedforward = 0.0
        self.kp_scale = 1.0
        self.kd_scale = 1.0
        self.max_torque = NAN
        self.stop_position = NAN
        self.timeout = 0.0
        self.velocity_limit = NAN
        self.accel_limit = NAN
        self.fixed_voltage = NAN
        self.ilimit_scale = 1.0
        self.fixed_current = NAN
        self.ignore_bounds = 0.0
        self.lower_bound = 0.0
        self.upper_bound = 0.0
        self.q_current = 0.0
        self.d_current = 0.0
        self.q_voltage = 0.0
        self.d_voltage = 0.0


class Board:
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
        self._offset = 0.0  # added to the plant's position, changed by "set output"

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

    def apply_config(self) -> None:
        """Copy configuration values to the attributes the control law reads; call after any change."""
        c = self.config
        self.id = int(c["id.id"])
        self.prefix = int(c["can.prefix"])
        self._kp = float(c["servo.pid_position.kp"])
        self._ki = float(c["servo.pid_position.ki"])
        self._kd = float(c["servo.pid_position.kd"])
        self._ilimit = float(c["servo.pid_position.ilimit"])
        self._min = float(c["servopos.position_min"])
        self._max = float(c["servopos.position_max"])
        self._derate_rev = max(float(c["servo.position_derate"]), 1e-6)
        ratio = float(c["motor_position.rotor_to_output_ratio"]) or 1.0
        self._torque_constant = TORQUE_CONSTANT_KV / max(float(c["motor.Kv"]), 1e-6) / ratio
        self._resistance = max(float(c["motor.resistance_ohm"]), 1e-6)
        self._max_current = float(c["servo.max_current_A"])
        self._max_velocity = float(c["servo.max_velocity"])
        power = float(c["servo.max_power_W"])
        if not (c["servo.override_board_max_power"] and math.isfinite(power)):
            power = BOARD_MAX_POWER_W if math.isnan(power) else min(power, BOARD_MAX_POWER_W)
        self._max_power = power
        # Fastest rotation without field weakening: revolutions of the output per second and volt of the bus.
        self._velocity_per_volt = float(c["motor.Kv"]) * ratio / 60.0 * 0.95
        self._flux_brake_v = float(c["servo.max_voltage"]) - float(c["servo.flux_brake_margin_voltage"])

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
            turn = float(self.config["motor_position.rotor_to_output_ratio"]) or 1.0
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
        turn = float(self.config["motor_position.rotor_to_output_ratio"]) or 1.0
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
        flux = bus_v - self._flux_brake_v
        if flux > 0.0 and mode in (POSITION, TIMEOUT, ZERO_VELOCITY, STAY_WITHIN) and self.mode != FAULT:
            # The winding is used as a resistor: a part of what comes back is turned into heat.
            d_current = min(flux / float(self.config["servo.flux_brake_resistance_ohm"]), self._max_current)
            burnt = 1.5 * d_current * d_current * self._resistance
            self.d_current = -d_current
            self.power_w += burnt
            loss += burnt
            self.fault = int(Fault.LIMIT_FLUX_BRAKING)
        else:
            self.d_current = 0.0
        self.power = self.power_w
        self._heat(loss, dt)
        return torque

    def _measure(self, true_position: float, true_velocity: float) -> None:
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

    def _latch(self, fault: Fault) -> None:
        self.mode = FAULT
        self.fault = int(fault)

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

    def _law(self, mode: int, dt: float) -> float:
        """Torque of the active mode, limited; may latch a fault."""
        command = self._command
        if mode == POSITION:
            return self._position_law(command, command.kp_scale, command.kd_scale, command.max_torque, dt)
        if mode == ZERO_VELOCITY:
            return self._zero_velocity_law(command.kd_scale, dt)
        if mode == TIMEOUT:
            fallback = self.config["servo.timeout_mode"]
            if fallback == ZERO_VELOCITY:
                return self._zero_velocity_law(1.0, dt)
            if fallback == POSITION:
                hold = Command(POSITION)
                hold.velocity_limit = float(self.config["servo.default_velocity_limit"])
                hold.accel_limit = float(self.config["servo.default_accel_limit"])
                self._target = NAN
                return self._position_law(hold, 1.0, 1.0, NAN, dt)
            if fallback == BRAKE:
                return self._brake_torque()
            self._no_torque()
            return 0.0
        if mode == BRAKE:
            return self._brake_torque()
        if mode == STAY_WITHIN:
            return self._stay_within_law(command, dt)
        if mode == CURRENT:
            return self._limit(command.q_current * self._torque_constant, NAN)
        if mode == int(Mode.VOLTAGE_DQ):
            return self._limit(self._torque_of_voltage(command.q_voltage), NAN)
        return 0.0  # open-loop voltage modes turn the field, not this model's rotor

    def _torque_of_voltage(self, volts: float) -> float:
        back_emf = self.velocity / max(self._velocity_per_volt, 1e-9)
        return (volts - back_emf) / self._resistance * self._torque_constant

    def _brake_torque(self) -> float:
        """All phases shorted: the motor is a damper whose strength comes from winding resistance and Kv."""
        torque = -self.velocity * TWO_PI * 1.5 * self._torque_constant**2 / self._resistance
        self._clear_terms()
        self.control_torque = torque
        limit = self._max_current * self._torque_constant
        return min(max(torque, -limit), limit)

    def _zero_velocity_law(self, kd_scale: float, dt: float) -> float:
        hold = Command(ZERO_VELOCITY)
        hold.ignore_bounds = 1.0
        hold.ilimit_scale = 0.0
        self._target = NAN
        return self._position_law(
            hold, 0.0, kd_scale, float(self.config["servo.timeout_max_torque_Nm"]), dt, fixed_velocity=0.0
        )

    def _stay_within_law(self, command: Command, dt: float) -> float:
        bound = NAN
        if self.position < command.lower_bound:
            bound = command.lower_bound
        elif self.position > command.upper_bound:
            bound = command.upper_bound
        if math.isnan(bound):
            self._clear_control()
            self._clear_terms()
            self.term_feedforward = command.feedforward
            self.control_torque = self._limit_command(command.feedforward, command.max_torque)
            return self._limit(self.control_torque, command.ignore_bounds)
        self.control_position = bound
        self.control_velocity = 0.0
        self._target = NAN
        return self._position_law(command, command.kp_scale, command.kd_scale, command.max_torque, dt, 0.0)

    def _position_law(
        self,
        command: Command,
        kp_scale: float,
        kd_scale: float,
        max_torque: float,
        dt: float,
        fixed_velocity: float | None = None,
    ) -> float:
        """PID with feedforward around the control position, which follows the command within its limits."""
        velocity_command = (
            self._advance(command, dt) if fixed_velocity is None else self._hold(fixed_velocity)
        )
        if not self.encoder_ok:
            self._latch(Fault.ENCODER)
            return 0.0
        error = self.position - self.control_position
        error_rate = self.velocity - velocity_command
        proportional = -kp_scale * self._kp * error
        derivative = -kd_scale * self._kd * error_rate
        if self._ilimit > 0.0:
            limit = self._ilimit * command.ilimit_scale
            self._integral = min(max(self._integral - self._ki * error * dt, -limit), limit)
        self.term_proportional = proportional
        self.term_derivative = derivative
        self.term_integral = self._integral
        self.term_feedforward = command.feedforward
        torque = proportional + derivative + self._integral + command.feedforward
        inertia = self.config["servo.inertia_feedforward"]
        if inertia:
            torque += TWO_PI * self.control_acceleration * inertia
        limit = self.config["servo.fault_position_error"]
        if abs(error) > limit:
            self._latch(Fault.POSITION_ERROR)
            return 0.0
        if abs(error_rate) > self.config["servo.fault_velocity_error"]:
            self._latch(Fault.VELOCITY_ERROR)
            return 0.0
        torque = self._limit_command(torque, max_torque)
        self.control_torque = torque
        return self._limit(torque, command.ignore_bounds)

    def _limit_command(self, torque: float, max_torque: float) -> float:
        if torque > max_torque or torque < -max_torque:  # false for NaN: no limit asked for
            self.fault = int(Fault.LIMIT_MAX_TORQUE)
            return math.copysign(max_torque, torque)
        return torque

    def _limit(self, torque: float, ignore_bounds: float) -> float:
        """Board limits in the firmware's order: bounds, velocity, current and heat, power, voltage."""
        position = self.position
        if not (ignore_bounds and not math.isnan(ignore_bounds)):
            if position > self._max and torque > 0.0:
                torque *= max(0.0, 1.0 - (position - self._max) / self._derate_rev)
                self.fault = int(Fault.LIMIT_POSITION_BOUNDS)
            elif position < self._min and torque < 0.0:
                torque *= max(0.0, 1.0 - (self._min - position) / self._derate_rev)
                self.fault = int(Fault.LIMIT_POSITION_BOUNDS)
        speed = abs(self.velocity)
        constant = self._torque_constant
        driving = torque * self.velocity > 0.0
        if driving and speed > self._max_velocity:
            fraction = 1.0 - (speed - self._max_velocity) / float(self.config["servo.max_velocity_derate"])
            torque = self._clip(
                torque, max(0.0, fraction) * self._max_current * constant, Fault.LIMIT_MAX_VELOCITY
            )
        limit, code = self._current_limit()
        torque = self._clip(torque, limit * constant, code)
        if driving:
            power = abs(torque) * speed * TWO_PI
            if power > self._max_power:
                torque = self._clip(torque, self._max_power / (speed * TWO_PI), Fault.LIMIT_MAX_POWER)
            fastest = self._velocity_per_volt * self.voltage
            if speed > fastest:
                torque = self._clip(torque, 0.0, Fault.LIMIT_MAX_VOLTAGE)
        return torque

    def _clip(self, torque: float, limit: float, code: Fault) -> float:
        if torque > limit or torque < -limit:
            self.fault = int(code)
            return math.copysign(limit, torque)
        return torque

    def _current_limit(self) -> tuple[float, Fault]:
        c = self.config
        margin = c["servo.temperature_margin"]
        fraction = (self.temperature - c["servo.fault_temperature"]) / margin + 1.0
        code = Fault.LIMIT_FET_TEMPERATURE
        motor_fault = c["servo.motor_fault_temperature"]
        if c["servo.enable_motor_temperature"] and not math.isnan(motor_fault):
            motor = (self.motor_temperature - motor_fault) / c["servo.motor_temperature_margin"] + 1.0
            if motor > fraction:
                fraction, code = motor, Fault.LIMIT_MOTOR_TEMPERATURE
        if fraction <= 0.0:
            return self._max_current, Fault.LIMIT_MAX_CURRENT
        derated = self._max_current + fraction * (c["servo.derate_current_A"] - self._max_current)
        return max(0.0, derated), code

    # ------------------------------------------------------------------ control position

    def _clear_control(self) -> None:
        self.control_position = NAN
        self.control_velocity = NAN
        self.control_acceleration = 0.0
        self._integral = 0.0
        self._target = NAN

    def _clear_terms(self) -> None:
        self.term_proportional = self.term_integral = self.term_derivative = self.term_feedforward = 0.0
        self.control_torque = 0.0

    def _no_torque(self) -> None:
        self._clear_control()
        self._clear_terms()

    def _captured_velocity(self) -> float:
        threshold = float(self.config["servo.velocity_zero_capture_threshold"])
        return 0.0 if abs(self.velocity) < threshold else self.velocity

    def _hold(self, velocity: float) -> float:
        if math.isnan(self.control_position):
            self.control_position = self.position
        self.control_velocity = velocity
        self.control_acceleration = 0.0
        return velocity

    def _advance(self, command: Command, dt: float) -> float:
        """Move the control position by dt and return the velocity the derivative term compares with."""
        velocity = command.velocity
        limited = not (math.isnan(command.velocity_limit) and math.isnan(command.accel_limit))
        if not limited:
            self.trajectory_complete = 1
            self.control_acceleration = 0.0
            if not math.isnan(self._target):
                self.control_position = self._target
                self._target = NAN
            elif math.isnan(self.control_position):
                self.control_position = self.position
            self.control_velocity = velocity
            self.control_position += velocity * dt
        else:
            if math.isnan(self.control_position):
                self.control_position = self.position
                self.control_velocity = self._captured_velocity()
            self._follow(command, velocity, dt)
        slip = self.config["servo.max_position_slip"]
        if not math.isnan(slip):
            self.control_position = min(
                max(self.control_position, self.position - slip), self.position + slip
            )
        at_limit = False
        if not command.ignore_bounds:
            if self.control_position < self._min:
                self.control_position, at_limit = self._min, True
            elif self.control_position > self._max:
                self.control_position, at_limit = self._max, True
        stop = command.stop_position
        if not math.isnan(stop) and (self.control_position - stop) * self.control_velocity > 0.0:
            self.control_position, at_limit = stop, True
            command.velocity = 0.0
            self._target = NAN
        if at_limit:
            self.control_velocity = 0.0
            self.control_acceleration = 0.0
        return self.control_velocity

    def _follow(self, command: Command, final_velocity: float, dt: float) -> None:
        """Bring control position and velocity to the moving target with limited velocity and acceleration."""
        v0 = self.control_velocity
        accel = command.accel_limit
        v_max = command.velocity_limit
        target = self._target
        if math.isnan(target):
            wanted = final_velocity
        else:
            # Fastest velocity from which the remaining way still suffices to brake (in the target's frame),
            # with the distance this step covers taken off so that the discrete path does not overshoot.
            distance = target - self.control_position
            if math.isnan(accel):
                wanted = distance / dt
            else:
                room = math.sqrt(2.0 * accel * abs(distance) + (0.5 * accel * dt) ** 2) - 0.5 * accel * dt
                wanted = final_velocity + math.copysign(min(room, abs(distance) / dt), distance)
            wanted = min(max(wanted, -v_max), v_max)
        v1 = wanted if math.isnan(accel) else min(max(wanted, v0 - accel * dt), v0 + accel * dt)
        self.control_acceleration = (v1 - v0) / dt if not math.isnan(accel) else 0.0
        self.control_velocity = v1
        self.control_position += v1 * dt
        if math.isnan(target):
            self.trajectory_complete = int(v1 == final_velocity)
            return
        self._target = target = target + final_velocity * dt
        step = (accel if not math.isnan(accel) else abs(v1) / dt) * dt
        left = target - self.control_position
        if abs(left) <= step * dt and abs(v1 - final_velocity) <= 2.0 * step:
            self.control_position = target
            self.control_velocity = final_velocity
            self.control_acceleration = 0.0
            self._target = NAN
            self.trajectory_complete = 1
        else:
            self.trajectory_complete = 0

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
                if int(raw) in COMMANDABLE:
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
                errors.append(bytes([0x30, *_varuint(register), 2 if register in reg.READABLE else 1]))
        if command is not None:
            self.command(command)
        return errors


def _varuint(value: int) -> list[int]:
    return [value] if value < 0x80 else [value & 0x7F | 0x80, value >> 7]
