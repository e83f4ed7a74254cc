"""How scripts and commands are sent where the caller waits for the answer, and what it is told of trouble."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from prefork_q.connection import NoScriptError, RedisError, as_unavailable, redis
from prefork_q.scripts import scripts


class Calls:
    """Calls in one namespace, from any thread. Every method raises `Unavailable` if Redis cannot do it now.

    `client` must not decode answers and must not retry. A script that the server has forgotten is sent
    again with its text.
    """

    def __init__(self, client: redis.Redis, root: str) -> None:
        self._redis: Any = client
        self._root = root

    def command(self, *command: object) -> Any:
        """Carry out a plain command."""
        try:
            return self._redis.execute_command(*command)
        except (RedisError, OSError) as error:
            raise as_unavailable(error) from error

    def commands(self, *commands: Sequence[object]) -> list[Any]:
        """Carry out plain commands at one moment, in one round trip."""
        try:
            with self._redis.pipeline(transaction=True) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command)
                answers: list[Any] = pipeline.execute()
        except (RedisError, OSError) as error:
            raise as_unavailable(error) from error
        return answers

    def script(self, verb: str, *arguments: object) -> Any:
        """Run a script."""
        script = scripts()[verb]
        try:
            try:
                return self._redis.execute_command(*script.by_sha(self._root, *arguments))
            except NoScriptError:
                return self._redis.execute_command(*script.by_source(self._root, *arguments))
        except (RedisError, OSError) as error:
            raise as_unavailable(error) from error

    def scripts(self, calls: Sequence[tuple[str, Sequence[object]]]) -> list[Any]:
        """Run scripts, each with its arguments, in one round trip."""
        if not calls:
            return []
        chosen = [scripts()[verb] for verb, _ in calls]
        try:
            with self._redis.pipeline(transaction=False) as pipeline:
                for script, (_, arguments) in zip(chosen, calls, strict=True):
                    pipeline.execute_command(*script.by_sha(self._root, *arguments))
                answers: list[Any] = pipeline.execute(raise_on_error=False)
            for n, answer in enumerate(answers):
                if isinstance(answer, NoScriptError):
                    source = chosen[n].by_source(self._root, *calls[n][1])
                    answers[n] = self._redis.execute_command(*source)
                elif isinstance(answer, Exception):
                    raise answer
        except (RedisError, OSError) as error:
            raise as_unavailable(error) from error
        return answers

    def script_in_turn(self, verb: str, arguments: Iterable[Sequence[object]]) -> Iterator[Any]:
        """Run a script once for each of `arguments`, each made ready while Redis is at the one before.

        The client is one of `connect`. What was sent and not answered may have been done. A server that
        does not know the script refuses the first of them, as `Unavailable`.
        """
        script = scripts()[verb]
        try:
            yield from self._redis.in_turn(script.by_sha(self._root, *these) for these in arguments)
        except (RedisError, OSError) as error:
            raise as_unavailable(error) from error
