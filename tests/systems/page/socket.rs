//! WebDriver BiDi: commands and events as JSON over one WebSocket.
//!
//! Invariant: a command is answered, or the test fails; events meanwhile are kept in order.

use std::net::TcpStream;
use std::time::Duration;

use holdfast_fixtures::TEST_TIMEOUT;
use holdfast_fixtures::clock::Deadline;
use serde_json::{Value, json};
use tungstenite::{Message, WebSocket, client};

/// A browser closes within a second.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// One session with a browser.
pub(crate) struct Session {
    socket: WebSocket<TcpStream>,
    commands: u64,
    pub(crate) events: Vec<Value>,
}

impl Session {
    /// The browser's address, as `ws://127.0.0.1:PORT/PATH`.
    pub(crate) fn connect(url: &str) -> Self {
        let address = url.trim_start_matches("ws://").split('/').next().unwrap();
        let stream = TcpStream::connect(address.replace("localhost", "127.0.0.1")).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let (socket, _) = client(url, stream).unwrap();
        Self { socket, commands: 0, events: Vec::new() }
    }

    #[track_caller]
    pub(crate) fn command(&mut self, method: &str, parameters: &Value) -> Value {
        self.commands += 1;
        let command = json!({"id": self.commands, "method": method, "params": parameters});
        self.socket.send(Message::text(command.to_string())).unwrap();
        let end = Deadline::after(TEST_TIMEOUT);
        while !end.is_over() {
            let said = self.read();
            match said["id"].as_u64() {
                Some(id) if id == self.commands && said["type"] == "success" => {
                    return said["result"].clone();
                }
                Some(id) if id == self.commands => panic!("{method}: {said}"),
                _ => self.events.push(said),
            }
        }
        panic!("{method} is not answered");
    }

    /// Closes the browser, and waits until it has hung up.
    pub(crate) fn leave(&mut self) {
        let command = json!({"id": self.commands + 1, "method": "browser.close", "params": {}});
        let _ = self.socket.send(Message::text(command.to_string()));
        let _ = self.socket.get_ref().set_read_timeout(Some(CLOSE_LIMIT));
        while self.socket.read().is_ok() {}
    }

    fn read(&mut self) -> Value {
        loop {
            if let Message::Text(text) = self.socket.read().unwrap() {
                return serde_json::from_str(&text).unwrap();
            }
        }
    }
}
