"""What both sides say goes through; only the client's end of a connection ends it."""

import socket

import pytest

from sparsemlp.distributed.relay import relay


@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        yield listener


def connect(server: socket.socket) -> tuple[socket.socket, socket.socket]:
    """The client's connection to a relay, and the server's."""
    client = socket.create_connection(("127.0.0.1", relay(*server.getsockname())), timeout=20)
    accepted, _ = server.accept()
    accepted.settimeout(20)
    return client, accepted


def test_bytes_go_both_ways(server):
    client, accepted = connect(server)
    sent = bytes(range(256)) * 2000
    with client, accepted:
        client.sendall(sent)
        assert accepted.makefile("rb").read(len(sent)) == sent
        accepted.sendall(sent[::-1])
        assert client.makefile("rb").read(len(sent)) == sent[::-1]


def test_a_server_that_is_gone_is_not_noticed(server):
    client, accepted = connect(server)
    accepted.close()
    with client:
        client.settimeout(0.5)
        with pytest.raises(TimeoutError):
            client.recv(1)


def test_a_client_that_leaves_is_noticed(server):
    client, accepted = connect(server)
    client.close()
    with accepted:
        assert accepted.recv(1) == b""
