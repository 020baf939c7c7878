"""A relay to JAX's coordination service, which does not pass on that the service is gone.

A JAX client (0.11 and 0.12) aborts the process, with a C++ stack trace, as soon as the connection
to the service in process 0 is closed; its callback for that cannot be used from Python. `lifeline`
notes the same at the same moment and ends the process with a line instead. So that it always comes
first, the client's connection goes over this relay and stays open; the client would notice by its
heartbeats.
"""

import contextlib
import socket
import threading


def relay(host: str, port: int) -> int:
    """Passes on connections to a server, and keeps them open when it closes them.

    Args:
      host: of the server.
      port: of the server.

    Returns:
      The port on 127.0.0.1 to connect to instead, for as long as this process lives.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_accept, args=(listener, host, port), daemon=True).start()
    return listener.getsockname()[1]


def _accept(listener: socket.socket, host: str, port: int) -> None:
    while True:
        ours, _ = listener.accept()
        try:
            theirs = socket.create_connection((host, port), timeout=30)
        except OSError:
            ours.close()  # the client tries again
            continue
        for end in (ours, theirs):
            end.settimeout(None)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_pass_on, args=(theirs, ours), daemon=True).start()
        threading.Thread(target=_pass_on_and_close, args=(ours, theirs), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)


def _pass_on_and_close(source: socket.socket, sink: socket.socket) -> None:
    _pass_on(source, sink)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
