"""Measures one PPO, or the matrix rate, in this process: `python ppo_workers.py '{"system": ..., ...}'`.

Both systems train on CartPole-v1 with separate tanh networks for actor and critic, from a state made beforehand: one warm-up
call of `num_updates` updates, then timed calls of as many, each going on from the last.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

Record = dict[str, Any]
State = Any

# The same for both systems. rejax bounds the change of a value by `clip_eps` and gives the squared error a factor 1/2.
LEARNING_RATE, GAMMA, GAE_LAMBDA, CLIP_EPS = 3e-4, 0.99, 0.95, 0.2
VALUE_COEF, ENTROPY_COEF, MAX_GRAD_NORM = 0.5, 0.01, 0.5
EPISODES = 128  # of the evaluation


@dataclass(frozen=True, kw_only=True)
class Case:
    """One measurement.

    Attributes:
      width: of both hidden layers of actor and critic.
      lanes: independent runs under one vmap.
      num_updates: updates a timed call.
      evaluate: whether to evaluate the agent after the last call, outside the clock.
    """

    width: int
    lanes: int
    num_envs: int
    num_steps: int
    epochs: int
    minibatches: int
    num_updates: int
    repeats: int
    seed: int
    evaluate: bool

    @property
    def steps(self) -> int:
        """Environment steps of a timed call, in one lane."""
        return self.num_updates * self.num_envs * self.num_steps


def measure_rejax(case: Case) -> Record:
    """rejax without its evaluations while training."""
    from rejax import get_algo

    algo = get_algo("ppo").create(
        env="CartPole-v1",
        agent_kwargs={"hidden_layer_sizes": (case.width, case.width), "activation": "tanh"},
        num_envs=case.num_envs,
        num_steps=case.num_steps,
        num_epochs=case.epochs,
        num_minibatches=case.minibatches,
        total_timesteps=case.steps,
        eval_freq=case.steps,
        skip_initial_evaluation=True,
        learning_rate=LEARNING_RATE,
        gamma=GAMMA,
        gae_lambda=GAE_LAMBDA,
        clip_eps=CLIP_EPS,
        vf_coef=VALUE_COEF,
        ent_coef=ENTROPY_COEF,
        max_grad_norm=MAX_GRAD_NORM,
    )
    quiet = algo.replace(eval_callback=lambda algo, state, key: ())

    def train(state: State) -> State:
        return quiet.train(train_state=state)[0]

    def final_return(state: State, key: jax.Array) -> jax.Array:
        return algo.eval_callback(algo, state, key)[1].mean()

    init = algo.init_state
    init_key, eval_key = jax.random.split(jax.random.key(case.seed))
    keys, eval_keys = init_key, eval_key
    if case.lanes > 1:
        init, train, final_return = jax.vmap(init), jax.vmap(train), jax.vmap(final_return)
        keys, eval_keys = jax.random.split(init_key, case.lanes), jax.random.split(eval_key, case.lanes)
    record, state = time_training(train, jax.jit(init)(keys), repeats=case.repeats)
    returns = jax.jit(final_return)(state, eval_keys) if case.evaluate else None
    return record | {"final_return": None if returns is None else float(returns.mean())}


def measure_jaxagent(case: Case) -> Record:
    """`jaxagent.bench.bench_train`, lanes split over the processors as `jaxagent sweep` does.

    The evaluated agent is that of one run as long as all calls together.
    """
    processors = len(os.sched_getaffinity(0))
    devices = processors if case.lanes % processors == 0 else 1
    jax.config.update("jax_num_cpu_devices", devices)
    from jaxagent.bench import bench_train
    from jaxagent.envs import registry
    from jaxagent.evaluation import evaluate
    from jaxagent.learners.ppo import PPO
    from jaxagent.networks.actor_critic import actor_critic
    from jaxagent.train import Trainer

    env, params = registry.make("CartPole-v1")
    learner = PPO(
        lr=LEARNING_RATE,
        gamma=GAMMA,
        gae_lambda=GAE_LAMBDA,
        clip_eps=CLIP_EPS,
        value_clip_eps=CLIP_EPS,
        value_coef=VALUE_COEF,
        entropy_coef=ENTROPY_COEF,
        max_grad_norm=MAX_GRAD_NORM,
        network=actor_critic(env.spec, hidden=(case.width, case.width), shared=False),
        num_epochs=case.epochs,
        num_minibatches=case.minibatches,
    )
    trainer = Trainer(env, params, learner, num_envs=case.num_envs, num_steps=case.num_steps)

    @jax.jit
    def final_return(key: jax.Array) -> jax.Array:
        init_key, eval_key = jax.random.split(key)
        state, _ = trainer.run(trainer.init(init_key), case.num_updates * (case.repeats + 1))
        agent = learner.agent(state.learner)
        return evaluate(env, params, learner.policy(), agent, eval_key, num_episodes=EPISODES).total_reward.mean()

    result = float(final_return(jax.random.key(case.seed))) if case.evaluate else None
    settings = {
        "lanes": case.lanes,
        "devices": devices,
        "num_updates": case.num_updates,
        "repeats": case.repeats,
        "seed": case.seed,
    }
    return bench_train(trainer, **settings) | {"final_return": result}


def time_training(train: Callable[[State], State], state: State, *, repeats: int) -> tuple[Record, State]:
    """Compile apart, one call to warm up, then `repeats` timed calls. Returns the record and the last state."""
    lowered = jax.jit(train, donate_argnums=0).lower(state)
    start = time.perf_counter()
    compiled = lowered.compile()
    compile_s = time.perf_counter() - start
    state = jax.block_until_ready(compiled(state))
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        state = jax.block_until_ready(compiled(state))
        seconds.append(time.perf_counter() - start)
    return {"compile_s": compile_s, "seconds": seconds}, state


def measure_matmul(case: Case) -> Record:
    """Floating-point operations a second of `[rows, width] @ [width, width]`: a chain of products in one program.

    The rows are those of a minibatch.
    """
    rows = case.num_envs * case.num_steps // case.minibatches
    products = MATMUL_FLOPS // (2 * rows * case.width**2)
    weights = 0.999 * jnp.eye(case.width)  # so that the chain neither overflows nor reaches denormal numbers
    chain = jax.jit(lambda x, w: jax.lax.fori_loop(0, products, lambda _, x: x @ w, x))
    x = jnp.ones((rows, case.width))
    jax.block_until_ready(chain(x, weights))
    seconds = []
    for _ in range(case.repeats):
        start = time.perf_counter()
        jax.block_until_ready(chain(x, weights))
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds, "flops": 2 * rows * case.width**2 * products}


MATMUL_FLOPS = 2**35
MEASURES = {"rejax": measure_rejax, "jaxagent": measure_jaxagent, "matmul": measure_matmul}


def main() -> None:
    arguments = json.loads(sys.argv[1])
    system = arguments.pop("system")
    print(json.dumps(arguments | MEASURES[system](Case(**arguments))))


if __name__ == "__main__":
    main()
