"""A3C on CartPole: worker processes train one actor-critic, without locks.

    python examples/a3c.py --workers 2 --target 300

Each worker plays with a copy of the weights and applies its gradients to the shared ones (Hogwild).
`--asynchronous.method hogwild` of stepladder trains any Task in the same way: shared weights, no
locks. Runs with the same seed differ, as the workers' updates come in a different order.

Source: Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning", arXiv:1602.01783.
"""

import argparse
import contextlib
import signal
import sys
import time
from collections import deque
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import numpy as np
import torch
import torch.multiprocessing as mp
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

GRAVITY, CART_MASS, POLE_MASS, HALF_LENGTH, FORCE, TAU_S = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
MAX_POSITION, MAX_ANGLE, MAX_STEPS = 2.4, np.radians(12), 500
LR, DECAY, EPSILON, MAX_GRAD_NORM = 1e-3, 0.99, 1e-6, 5.0
ROLLOUT_STEPS, DISCOUNT, ENTROPY_WEIGHT, VALUE_WEIGHT = 20, 0.99, 0.001, 0.5
REWARD_SCALE = 1 - DISCOUNT  # returns in [0, 1]: if larger, clipping shrinks the actor's gradient
WINDOW_EPISODES, LINE_EVERY_S = 50, 2.0
FLAGS = {  # default, lowest, highest, help
    "workers": (2, 1, 64, "processes"),
    "max-seconds": (60, 1, 86_400, "end after this time if the target is not reached"),
    "target": (300, 1, MAX_STEPS, f"end at this mean return of {WINDOW_EPISODES} episodes"),
    "seed": (0, 0, 2**31, "of the first weights, the actions and the first states"),
}


def move(state: NDArray[np.float64], action: int) -> NDArray[np.float64]:
    """Return position, velocity, angle and turn rate after a push to the left (0) or right (1).

    Source: Barto, Sutton and Anderson 1983, "Neuronlike Adaptive Elements That Can Solve Difficult
    Learning Control Problems", appendix, without friction; constants of CartPole-v1.
    """
    _, velocity, angle, turn = state
    mass, sin, cos = CART_MASS + POLE_MASS, np.sin(angle), np.cos(angle)
    push = (FORCE * (2 * action - 1) + POLE_MASS * HALF_LENGTH * turn**2 * sin) / mass
    spin = (GRAVITY * sin - cos * push) / (HALF_LENGTH * (4 / 3 - POLE_MASS * cos**2 / mass))
    acceleration = push - POLE_MASS * HALF_LENGTH * spin * cos / mass
    return np.asarray(state + TAU_S * np.array([velocity, acceleration, turn, spin]))


class CartPole:
    """An episode with a pole on a cart, which ends by a fall or after MAX_STEPS."""

    def __init__(self, random: np.random.Generator) -> None:
        self.state = random.uniform(-0.05, 0.05, size=4)
        self.num_steps, self.has_fallen, self.is_over = 0, False, False

    def step(self, action: int) -> float:
        self.state = move(self.state, action)
        self.num_steps += 1
        self.has_fallen = bool(abs(self.state[0]) > MAX_POSITION or abs(self.state[2]) > MAX_ANGLE)
        self.is_over = self.has_fallen or self.num_steps >= MAX_STEPS
        return 1.0


class ActorCritic(nn.Module):
    """Two small networks: the logits of the actions, and the value of the state."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))


def n_step_returns(rewards: list[float], last_value: float, discount: float) -> list[float]:
    """Return R_t = r_t + discount * R_(t+1) for each step, where the last R is last_value."""
    returns: list[float] = []
    for reward in reversed(rewards):
        last_value = reward + discount * last_value
        returns.append(last_value)
    return returns[::-1]


@torch.no_grad()
def play(cart: CartPole, model: ActorCritic) -> tuple[Tensor, Tensor, Tensor]:
    """Play ROLLOUT_STEPS, or to the end; return states (t, 4), actions (t,) and returns (t,)."""
    states: list[Tensor] = []
    actions, rewards = [], []
    while len(states) < ROLLOUT_STEPS and not cart.is_over:
        states.append(torch.from_numpy(cart.state).float())
        push_right = model.actor(states[-1]).softmax(0)[1]  # a probability
        actions.append(int(torch.rand(()) < push_right))
        rewards.append(cart.step(actions[-1]) * REWARD_SCALE)
    # The limit of steps is not a fall: the value is that of the rewards that would have followed.
    value = 0.0 if cart.has_fallen else float(model.critic(torch.from_numpy(cart.state).float()))
    returns = n_step_returns(rewards, value, DISCOUNT)
    return torch.stack(states), torch.tensor(actions), torch.tensor(returns)


def loss_of(model: ActorCritic, states: Tensor, actions: Tensor, returns: Tensor) -> Tensor:
    """Return the losses of policy and value minus the entropy bonus, summed over the steps."""
    log_probs = model.actor(states).log_softmax(1)  # (t, 2)
    advantages = returns - model.critic(states).squeeze(1)  # (t,)
    chosen = log_probs.gather(1, actions[:, None]).squeeze(1)  # (t,)
    bonus = -ENTROPY_WEIGHT * (log_probs.exp() * log_probs).sum(1)  # (t,)
    losses: Tensor = VALUE_WEIGHT * advantages.square() - chosen * advantages.detach() - bonus
    return losses.sum()


def rmsprop_(weights: Tensor, squares: Tensor, grad: Tensor) -> None:
    """Take a step in place (Optimization in section 4), with no lock: others may overwrite it."""
    squares.mul_(DECAY).addcmul_(grad, grad, value=1 - DECAY)
    weights.addcdiv_(grad, (squares + EPSILON).sqrt(), value=-LR)


def work(worker_idx: int, seed: int, weights: Tensor, squares: Tensor, sender: Connection) -> None:
    """Play and update the shared weights without end; send the return of each episode."""
    torch.set_num_threads(1)  # with more, the workers would compete for the cores
    torch.manual_seed(seed + 1000 * worker_idx)
    random, model = np.random.default_rng([seed, worker_idx]), ActorCritic()
    cart = CartPole(random)
    with contextlib.suppress(BrokenPipeError):  # the main process has ended
        while True:
            vector_to_parameters(weights.clone(), model.parameters())
            loss = loss_of(model, *play(cart, model))
            grad = parameters_to_vector(torch.autograd.grad(loss, list(model.parameters())))
            grad *= (MAX_GRAD_NORM / grad.norm()).clamp(max=1)
            rmsprop_(weights, squares, grad)
            if cart.is_over:
                sender.send(float(cart.num_steps))
                cart = CartPole(random)


def start(crew: dict[Connection, SpawnProcess], num_workers: int, seed: int) -> None:
    """Start workers that share their weights; add each to the crew by the pipe that it sends to."""
    torch.manual_seed(seed)
    weights = parameters_to_vector(ActorCritic().parameters()).detach()
    shared = (weights, torch.zeros_like(weights))  # and the squared gradients' mean
    for tensor in shared:
        tensor.share_memory_()  # type: ignore[no-untyped-call]
    context = mp.get_context("spawn")
    # Workers inherit that Ctrl-C is ignored: the main process handles it and ends them.
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    for idx in range(num_workers):
        receiver, sender = context.Pipe(duplex=False)  # not one queue: its lock could stay locked
        process = context.Process(target=work, args=(idx, seed, *shared, sender), daemon=True)
        process.start()
        crew[receiver] = process
        sender.close()  # the worker has the only other copy, so the pipe ends with it
    signal.signal(signal.SIGINT, handler)


def receive(receiver: Connection, process: SpawnProcess) -> float:
    """Return the return of an episode, or exit with a message if the worker has ended."""
    with contextlib.suppress(EOFError, OSError):
        return float(receiver.recv())
    process.join()
    if (code := process.exitcode or 0) >= 0:
        sys.exit(f"Worker process {process.pid} ended with code {code}. Its error is above.")
    fix = "If memory ran out, use fewer --workers; otherwise start again."
    sys.exit(f"Worker process {process.pid} was killed by {signal.Signals(-code).name}. {fix}")


def watch(crew: dict[Connection, SpawnProcess], target: int, max_s: float) -> bool:
    """Print the progress; return True at the target, or False after max_s seconds."""
    start_s, next_line_s, num_episodes = time.monotonic(), LINE_EVERY_S, 0
    returns: deque[float] = deque(maxlen=WINDOW_EPISODES)
    while True:
        wait(list(crew), timeout=0.1)
        for receiver in filter(Connection.poll, crew):
            returns.append(receive(receiver, crew[receiver]))
            num_episodes += 1
        elapsed_s, mean = time.monotonic() - start_s, sum(returns) / max(1, len(returns))
        is_reached = len(returns) == WINDOW_EPISODES and mean >= target
        is_over = is_reached or elapsed_s >= max_s
        if is_over or (returns and elapsed_s >= next_line_s):
            next_line_s = elapsed_s + LINE_EVERY_S
            counts = f"{num_episodes} episodes, mean of the last {len(returns)}"
            print(f"{elapsed_s:.0f} s, {counts}: {int(mean)}", flush=True)
        if is_over:
            return is_reached


def parse_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for name, (default, _, _, text) in FLAGS.items():
        parser.add_argument(f"--{name}", type=int, default=default, metavar="INT", help=text)
    options = parser.parse_args()
    for name, (_, low, high, _) in FLAGS.items():
        value = getattr(options, name.replace("-", "_"))
        if not low <= value <= high:
            parser.error(f"--{name} is {value}. Use a number from {low} to {high}.")
    return options


def main() -> int:
    options = parse_flags()
    print(f"Worker processes: {options.workers}, with one compute thread each.", flush=True)
    crew: dict[Connection, SpawnProcess] = {}
    try:
        start(crew, options.workers, options.seed)
        is_reached = watch(crew, options.target, options.max_seconds)
    except KeyboardInterrupt:
        sys.exit("Interrupted.")
    finally:
        for process in crew.values():
            process.kill()
            process.join()
    print(f"Target of {options.target} {'reached' if is_reached else 'not reached'}.")
    return 0 if is_reached else 1


if __name__ == "__main__":
    sys.exit(main())
