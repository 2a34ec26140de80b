//! A TCP forwarder in the test's own hands: a network that can fail on demand.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

pub(crate) struct Forwarder {
    pub(crate) address: String,
    pub(crate) accepted: Arc<AtomicUsize>,
    mute: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Forwarder {
    pub(crate) async fn start(to: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (accepted, mute) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let to = to.strip_prefix("http://").unwrap().to_owned();
        let (count, silence) = (accepted.clone(), mute.clone());
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::SeqCst);
                let (to, silence) = (to.clone(), silence.clone());
                connections.spawn(async move {
                    let server = TcpStream::connect(&to).await.unwrap();
                    let (mut from_client, mut to_client) = client.into_split();
                    let (mut from_server, mut to_server) = server.into_split();
                    let up = async { tokio::io::copy(&mut from_client, &mut to_server).await.map(drop) };
                    let down = async {
                        let mut buffer = [0; 4096];
                        loop {
                            let length = from_server.read(&mut buffer).await?;
                            // Cut the connection in place of the answer.
                            if length == 0 || silence.load(Ordering::SeqCst) {
                                return Ok(());
                            }
                            to_client.write_all(&buffer[..length]).await?;
                        }
                    };
                    tokio::select! {
                        result = up => result,
                        result = down => result,
                    }
                });
            }
        });
        Self { address, accepted, mute, task }
    }

    /// From now on the first answer of the server cuts its connection.
    pub(crate) fn cut_answers(&self, cut: bool) {
        self.mute.store(cut, Ordering::SeqCst);
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.task.abort();
    }
}
