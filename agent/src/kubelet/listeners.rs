//! Whether kubelet listens to a plugin's list: counted, because a restarted kubelet may come before the old one's call ends.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

/// The open `ListAndWatch` calls of one plugin.
#[derive(Debug, Clone)]
pub struct Listeners {
    open: watch::Sender<usize>,
    nudge: Arc<Notify>,
}

/// One open call; dropped with it.
#[derive(Debug)]
pub struct Presence(Listeners);

impl Listeners {
    /// None yet; `nudge` is notified of every change.
    pub fn new(nudge: Arc<Notify>) -> Self {
        Self { open: watch::Sender::new(0), nudge }
    }

    /// Counts a call for as long as the answer lives.
    pub fn enter(&self) -> Presence {
        self.open.send_modify(|open| *open += 1);
        self.nudge.notify_one();
        Presence(self.clone())
    }

    /// Something happened that the driving loop should look at.
    pub fn nudge(&self) {
        self.nudge.notify_one();
    }

    /// Is there a call.
    pub fn any(&self) -> bool {
        *self.open.borrow() > 0
    }

    /// Waits until there is a call, or until there is none.
    pub async fn wait(&self, any: bool) {
        // cannot fail: `self` holds the sender
        let _ = self.open.subscribe().wait_for(|open| (*open > 0) == any).await;
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.open.send_modify(|open| *open = open.saturating_sub(1));
        self.0.nudge.notify_one();
    }
}
