"""The keeper: one process a node that moves, renews, reaps, hands back and prunes. No user code."""

from prefork_q.keeper.keeper import KeeperSettings, run_keeper

__all__ = ["KeeperSettings", "run_keeper"]
