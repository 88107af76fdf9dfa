//! Counts kubelet's open `ListAndWatch` calls: a restarted kubelet may open one before the old call ends.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

/// The open `ListAndWatch` calls of one plugin.
#[derive(Debug, Clone)]
pub struct ListWatchers {
    open: watch::Sender<usize>,
    /// Wakes the manager.
    wake: Arc<Notify>,
}

/// One open call, which ends when this is dropped.
#[derive(Debug)]
pub struct OpenWatch(ListWatchers);

impl ListWatchers {
    /// No open calls; every change notifies `wake`.
    pub fn new(wake: Arc<Notify>) -> Self {
        Self { open: watch::Sender::new(0), wake }
    }

    /// Counts a call until the returned value is dropped.
    pub fn open(&self) -> OpenWatch {
        self.open.send_modify(|open| *open += 1);
        self.wake();
        OpenWatch(self.clone())
    }

    /// Wakes the manager.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Some call is open.
    pub fn any(&self) -> bool {
        *self.open.borrow() > 0
    }

    /// Waits until some call is open, or until none is.
    pub async fn wait(&self, any: bool) {
        // cannot fail: `self` holds the sender
        let _ = self.open.subscribe().wait_for(|open| (*open > 0) == any).await;
    }
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        self.0.open.send_modify(|open| *open = open.saturating_sub(1));
        self.0.wake();
    }
}
