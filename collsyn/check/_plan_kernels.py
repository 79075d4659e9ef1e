"""Hot loop of plan simulation: channels, flags, and transfers that share links fairly, event by event."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from collsyn.check._sharing_kernels import Flows, Net, Queue, inner, join, leave, reshare, set_key, sift_down, sift_up

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

# What an instruction does to time.
INSTANT, LOCAL, SEND, FETCH, RAISE, AWAIT = 0, 1, 2, 3, 4, 5
# What a channel is doing: its bytes pass, its overhead passes, it waits for a moment or a flag, or it is done.
_PASSING, _TRAILING, _PAUSED, _WAITING, _DONE = 0, 1, 2, 3, 4


class Program(NamedTuple):
    """Instructions as columns: kind, bytes to send, seconds of local work, route, latency of a signal, flag, value."""

    channel_ptr: I64
    kind: I64
    num_bytes: F64
    local_s: F64
    route: I64
    signal_s: F64
    flag: I64
    value: I64


class Times(NamedTuple):
    """When each instruction began and ended, and when its data or signal arrived; NaN where it did not."""

    start_s: F64
    end_s: F64
    arrival_s: F64


class Channels(NamedTuple):
    """Per channel: its instruction, what it is doing, since when its signals travel, when all it sent has arrived, and
    the next channel that waits for the same flag."""

    at: I64
    state: I64
    sent_s: F64
    landed_s: F64
    next_waiter: I64


class Flags(NamedTuple):
    """Per flag: its value, and the first channel that waits for more."""

    level: I64
    first_waiter: I64


@inner
def _deliver(now: float, signals: Queue, num_signals: int, program: Program, channels: Channels, flags: Flags,
             times: Times, ready: I64) -> tuple[int, int]:  # fmt: skip
    """Signals that have arrived raise their flags and wake who waited; returns (signals left, channels ready)."""
    num_ready = 0
    while num_signals and signals.key[signals.heap[0]] <= now:
        instruction = signals.heap[0]
        num_signals -= 1
        last = signals.heap[num_signals]
        signals.heap[0], signals.where[last] = last, 0
        if num_signals:
            sift_down(signals, 0, num_signals)
        flag = program.flag[instruction]
        flags.level[flag] = max(flags.level[flag], program.value[instruction])
        waiter = flags.first_waiter[flag]
        flags.first_waiter[flag] = -1
        while waiter >= 0:
            following = channels.next_waiter[waiter]
            if program.value[channels.at[waiter]] <= flags.level[flag]:
                times.end_s[channels.at[waiter]] = now
                channels.at[waiter] += 1
                channels.sent_s[waiter] = now
                ready[num_ready] = waiter
                num_ready += 1
            else:
                channels.next_waiter[waiter] = flags.first_waiter[flag]
                flags.first_waiter[flag] = waiter
            waiter = following
    return num_signals, num_ready


@inner
def _finish(now: float, queue: Queue, net: Net, flows: Flows, program: Program, channels: Channels, times: Times,
            ready: I64, num_ready: int) -> int:  # fmt: skip
    """What channels were doing until now is over; returns how many are ready to go on."""
    while queue.key[queue.heap[0]] <= now:
        channel = queue.heap[0]
        instruction = channels.at[channel]
        if channels.state[channel] == _PASSING:
            route = flows.route[channel]
            times.arrival_s[instruction] = now + net.alpha_s[route]
            channels.sent_s[channel] = now
            channels.state[channel] = _TRAILING
            flows.rest[channel], flows.since[channel] = net.tail_bytes[route], now
            set_key(queue, channel, now + flows.rest[channel] / flows.rate[channel])
            continue
        set_key(queue, channel, np.inf)
        if channels.state[channel] == _TRAILING:
            leave(net, flows, channel)
            if program.kind[instruction] == FETCH:
                channels.state[channel] = _PAUSED
                moment = max(now, times.arrival_s[instruction]) + program.local_s[instruction]
                set_key(queue, channel, moment)
                continue
            channels.landed_s[channel] = max(channels.landed_s[channel], times.arrival_s[instruction])
        else:
            channels.sent_s[channel] = now
        times.end_s[instruction] = now
        channels.at[channel] += 1
        ready[num_ready] = channel
        num_ready += 1
    return num_ready


@inner
def _go_on(now: float, channel: int, queue: Queue, signals: Queue, num_signals: int, net: Net, flows: Flows,
           program: Program, channels: Channels, flags: Flags, times: Times) -> int:  # fmt: skip
    """Execute a channel up to its next instruction that takes time; returns the number of signals on their way."""
    channels.state[channel] = _DONE
    while channels.at[channel] < program.channel_ptr[channel + 1]:
        instruction = channels.at[channel]
        kind = program.kind[instruction]
        times.start_s[instruction] = now
        if kind != RAISE:
            channels.sent_s[channel] = now
        if kind == LOCAL:
            channels.state[channel] = _PAUSED
            set_key(queue, channel, now + program.local_s[instruction])
            break
        if kind in (SEND, FETCH):
            channels.state[channel] = _PASSING
            flows.rest[channel], flows.rate[channel], flows.since[channel] = program.num_bytes[instruction], 0.0, now
            flows.route[channel] = program.route[instruction]
            join(net, flows, channel)
            break
        flag = program.flag[instruction]
        if kind == RAISE:
            # It travels right behind the bytes of a PUT before it, whose overhead is not its own. Release: whatever
            # this channel has sent must have arrived before.
            travelled = channels.sent_s[channel] + program.signal_s[instruction]
            moment = max(now, travelled, channels.landed_s[channel])
            times.arrival_s[instruction] = signals.key[instruction] = moment
            signals.heap[num_signals], signals.where[instruction] = instruction, num_signals
            sift_up(signals, num_signals)
            num_signals += 1
        elif kind == AWAIT and flags.level[flag] < program.value[instruction]:
            channels.state[channel] = _WAITING
            channels.next_waiter[channel] = flags.first_waiter[flag]
            flags.first_waiter[flag] = channel
            break
        times.end_s[instruction] = now
        channels.at[channel] += 1
    return num_signals


@njit(cache=True)
def run(program: Program, net: Net, queue: Queue, signals: Queue, flows: Flows, channels: Channels, flags: Flags,
        times: Times) -> int:  # fmt: skip
    """Run all channels from time 0, fill in the times, and return how many channels never came to their end.

    At equal times signals come first, then channels by number; rates are set anew once all that happens then is done.
    """
    num_channels, num_signals = len(channels.at), 0
    ready = np.arange(num_channels)
    now, num_ready = 0.0, num_channels
    while now < np.inf:
        for i in range(num_ready):
            num_signals = _go_on(
                now, ready[i], queue, signals, num_signals, net, flows, program, channels, flags, times
            )  # fmt: skip
        reshare(now, queue, net, flows)
        now = queue.key[queue.heap[0]] if num_channels else np.inf
        if num_signals:
            now = min(now, signals.key[signals.heap[0]])
        if now < np.inf:
            num_signals, num_ready = _deliver(now, signals, num_signals, program, channels, flags, times, ready)
            num_ready = _finish(now, queue, net, flows, program, channels, times, ready, num_ready)
    return int((channels.at < program.channel_ptr[1:]).sum())
