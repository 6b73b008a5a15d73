"""The table of bad input, and what crewboard does with it. Each entry is one test.

`does` is the promise in words; docs/reference/exit-codes.md lists the exit codes: 2 usage, 65 bad data, 74 I/O, 75 try
later, 78 no credentials.
"""

from tests.bad_input.messages import MESSAGES
from tests.bad_input.names import NAMES
from tests.bad_input.paths import PATHS
from tests.bad_input.protocol import PROTOCOL
from tests.bad_input.state import STATE
from tests.bad_input.terminal import TERMINAL

TABLE = (*NAMES, *PATHS, *MESSAGES, *PROTOCOL, *STATE, *TERMINAL)
