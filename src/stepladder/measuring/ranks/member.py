"""A process of a team: `python -m stepladder.measuring.ranks.member FD`, or `HOST PORT RANK`."""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Connection
from typing import Any

from stepladder.measuring.ranks.processes import knock
from stepladder.measuring.ranks.team import Answer, Member, as_answer, receive, send
from stepladder.parallel.group import opened_world
from stepladder.parallel.handshake import require_same_programs
from stepladder.parallel.join import take_place
from stepladder.parallel.orphans import end_with_parent


def main(connection: Connection[Any, Any]) -> None:
    """Join the other processes, and answer commands until the connection is closed."""
    end_with_parent()
    member: Member = receive(connection)
    place = member.place
    with opened_world(place, is_cuda=member.is_cuda, start_s=member.meet_s) as world:
        world = take_place(world, is_cuda=member.is_cuda)
        send(connection, Answer())  # all have met
        try:
            if place.local_size < place.size:
                require_same_programs(world)
            made = member.make(world, **member.arguments)
        except Exception as error:
            send(connection, as_answer(error))
            os._exit(1)  # the others may wait for this one
        send(connection, Answer())
        while True:
            try:
                command, arguments = receive(connection)
            except (EOFError, OSError):
                break
            try:
                answer = Answer(getattr(made, command)(**arguments))
            except Exception as error:
                answer = as_answer(error)
            send(connection, answer)
    sys.stdout.flush()
    os._exit(0)  # threads of readers and collectives need not end


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(Connection(int(sys.argv[1])))
    else:
        main(knock(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
