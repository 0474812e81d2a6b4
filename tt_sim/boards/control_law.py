"""The control law of a board: command in, torque out, with every limit the firmware applies.

Numbers are revolutions of the output shaft, N m at the output shaft, seconds, volts. The position law is the
vendor's: torque = kp (x_c − x) + kd (v_c − v) + integral + feedforward, where the control position x_c
follows the commanded one at once, or within the commanded velocity and acceleration limits.
"""

import math

from tt_sim.boards.config import BOARD_MAX_POWER_W, TORQUE_CONSTANT_KV
from tt_sim.boards.registers import Fault, Mode

NAN = math.nan
TWO_PI = 2.0 * math.pi
STOPPED, FAULT, ENABLING = int(Mode.STOPPED), int(Mode.FAULT), int(Mode.ENABLING)
POSITION, TIMEOUT, ZERO_VELOCITY = int(Mode.POSITION), int(Mode.TIMEOUT), int(Mode.ZERO_VELOCITY)
STAY_WITHIN, BRAKE, CURRENT = int(Mode.STAY_WITHIN), int(Mode.BRAKE), int(Mode.CURRENT)
VOLTAGE_DQ = int(Mode.VOLTAGE_DQ)


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


class ControlLaw:
    """The part of a board that turns its command and measurements into torque.

    `Board` sets the measured values, mode and command; this class owns the control position and the terms.
    """

    config: dict[str, float | int | bool]
    mode: int
    fault: int
    position: float
    velocity: float
    voltage: float
    temperature: float
    motor_temperature: float
    encoder_ok: bool
    trajectory_complete: int
    _command: Command
    _integral: float
    _target: float

    def _configure_law(self) -> None:
        """Copy configuration values to the attributes the law reads."""
        c = self.config
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
        self._max_regen = float(c["servo.max_regen_power_W"])
        self._flux_brake_ohm = max(float(c["servo.flux_brake_resistance_ohm"]), 1e-6)
        self._flux_brake_v = float(c["servo.max_voltage"]) - float(c["servo.flux_brake_margin_voltage"])

    def _latch(self, fault: Fault) -> None:
        self.mode = FAULT
        self.fault = int(fault)

    def _law(self, mode: int, dt: float) -> float:
        """Torque of the active mode, limited; may latch a fault."""
        command = self._command
        if mode == POSITION:
            return self._position_law(command, dt)
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
                return self._position_law(hold, dt)
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
        if mode == VOLTAGE_DQ:
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
        hold.kp_scale = 0.0
        hold.kd_scale = kd_scale
        hold.max_torque = float(self.config["servo.timeout_max_torque_Nm"])
        return self._position_law(hold, dt, fixed_velocity=0.0)

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
        return self._position_law(command, dt, 0.0)

    def _position_law(self, command: Command, dt: float, fixed_velocity: float | None = None) -> float:
        """PID with feedforward around the control position, which follows the command within its limits."""
        velocity_command = (
            self._advance(command, dt) if fixed_velocity is None else self._hold(fixed_velocity)
        )
        if not self.encoder_ok:
            self._latch(Fault.ENCODER)
            return 0.0
        error = self.position - self.control_position
        error_rate = self.velocity - velocity_command
        proportional = -command.kp_scale * self._kp * error
        derivative = -command.kd_scale * self._kd * error_rate
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
        torque = self._limit_command(torque, command.max_torque)
        self.control_torque = torque
        return self._limit(torque, command.ignore_bounds)

    def _limit_command(self, torque: float, max_torque: float) -> float:
        if torque > max_torque or torque < -max_torque:  # false for NaN: no limit asked for
            self.fault = int(Fault.LIMIT_MAX_TORQUE)
            return math.copysign(max_torque, torque)
        return torque

    def _limit(self, torque: float, ignore_bounds: float) -> float:
        """Board limits in the firmware's order: bounds, velocity, current and heat, power, voltage."""
        if math.isnan(torque):
            return 0.0  # gains or torques that are not numbers; what a real board does then is not documented
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
        if abs(left) <= step * dt and abs(v1 - final_velocity) <= 1.0001 * step:
            self.control_position = target
            self.control_velocity = final_velocity
            self.control_acceleration = 0.0
            self._target = NAN
            self.trajectory_complete = 1
        else:
            self.trajectory_complete = 0
