//! Watches changes and prints them: a line for each update, or one refreshed table on a terminal.

pub mod usage;

use std::{
    io::{self, IsTerminal as _, Write as _},
    time::Duration,
};

use futures::{StreamExt as _, stream::BoxStream};
use gputenancy_cluster::{
    error::sentence,
    watch::{LONGEST_DELAY, events},
};
use gputenancy_crds::{GpuNode, GpuPool, GpuTenant};
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client, Resource,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, Store},
        watcher,
    },
};
use serde::de::DeserializeOwned;

use crate::{
    args::{ChangesArgs, ClusterArgs, Output},
    changes::{ChangeList, Objects, changes},
    cluster::{self, ClusterError},
    output::{self, OutputError},
    progress::Progress,
    render::{self, RenderError},
    units::time_limit,
};

/// Debounce of events.
const DEBOUNCE: Duration = Duration::from_millis(200);
/// Refresh interval of a table on a terminal.
const REFRESH: Duration = Duration::from_secs(1);
/// Where something was pending or in progress, the command ends when nothing has been for this time.
const CALM: Duration = Duration::from_secs(3);
/// Changes in a table on a terminal, so that it fits the height.
const MAX_SHOWN: usize = 8;

/// Why changes cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The cluster is not configured.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A first list failed.
    #[error("watching: {}", sentence(.0))]
    Watch(#[from] watcher::Error),
    /// The API server does not answer.
    #[error("watching: no answer from the API server at {server}: nothing within {}", time_limit(limit))]
    Timeout {
        /// Its address.
        server: String,
        /// The time limit.
        limit: Duration,
    },
    /// The list cannot be written as a document.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// Standard output cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
}

/// Follows changes until none is in progress; returns the last list.
pub async fn follow(cluster: &ClusterArgs, args: &ChangesArgs) -> Result<ChangeList, FollowError> {
    let (client, server) = &cluster::watching(cluster).await?;
    let limit = cluster.request_timeout;
    let (nodes, on_nodes) = watch::<GpuNode>(client);
    let (pools, on_pools) = watch::<GpuPool>(client);
    let (tenants, on_tenants) = watch::<GpuTenant>(client);
    let mut events = futures::stream::select_all([on_nodes, on_pools, on_tenants]);
    let read = || Objects { nodes: all(&nodes), pools: all(&pools), tenants: all(&tenants) };
    let filled = async {
        let mut lists = 0;
        while lists < 3 {
            lists += usize::from(events.next().await.transpose()?.unwrap_or_default());
        }
        Ok::<(), FollowError>(())
    };
    let silent = |_| FollowError::Timeout { server: server.clone(), limit };
    tokio::time::timeout(limit, filled).await.map_err(silent)??;
    if args.once || args.output != Output::Table {
        let list = changes(&read(), Timestamp::now());
        output::print(render::document(&list, args.output, || render::changes(&list))?)?;
        return Ok(list);
    }
    let (mut screen, mut waited) = (Screen { terminal: io::stdout().is_terminal(), ..Screen::default() }, false);
    loop {
        let mut list = changes(&read(), Timestamp::now());
        if list.is_over() && waited {
            // what ends in the status of a pool begins in another object a moment later; the stores follow the events
            let _ = tokio::time::timeout(CALM, async { while events.next().await.is_some() {} }).await;
            list = changes(&read(), Timestamp::now());
        }
        waited = true;
        match screen.show(&list) {
            // such as `head`, which has read what it wanted
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(list),
            shown => output::written(shown)?,
        }
        if list.is_over() {
            return Ok(list);
        }
        tokio::select! {
            event = events.next() => {
                if let Some(Err(error)) = event {
                    // the watch restarts by itself
                    output::note(format_args!("watching: {}", sentence(&error)));
                }
                tokio::time::sleep(DEBOUNCE).await;
            }
            () = tokio::time::sleep(REFRESH), if screen.terminal => {}
        }
    }
}

fn all<K: Resource<DynamicType = ()> + Clone>(store: &Store<K>) -> Vec<K> {
    store.state().iter().map(|o| (**o).clone()).collect()
}

/// A store and its events; true for one that completes the first list.
fn watch<K>(client: &Client) -> (Store<K>, BoxStream<'static, Result<bool, watcher::Error>>)
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + Sync + 'static,
{
    let (store, writer) = reflector::store();
    let events = events(Api::<K>::all(client.clone()), watcher::Config::default(), LONGEST_DELAY).reflect(writer);
    let events = events.map(|event| event.map(|e| matches!(e, watcher::Event::InitDone)));
    (store, events.boxed())
}

/// Standard output: a terminal is redrawn, anything else gets a line for each update.
#[derive(Default)]
struct Screen {
    terminal: bool,
    /// Lines that the last table has on the terminal.
    drawn: usize,
    progress: Progress,
}

impl Screen {
    fn show(&mut self, list: &ChangeList) -> io::Result<()> {
        if self.terminal { self.draw(list) } else { self.print(list) }?;
        let failed = list.items.len();
        match (list.is_over(), failed) {
            (false, _) => Ok(()),
            // the table is this line
            (true, 0) if self.terminal => Ok(()),
            (true, 0) => writeln!(anstream::stdout(), "no GPU is changing"),
            (true, _) => writeln!(anstream::stdout(), "no GPU is changing; the last change of {failed} failed"),
        }
    }

    fn draw(&mut self, list: &ChangeList) -> io::Result<()> {
        let mut shown = list.clone();
        shown.items.truncate(MAX_SHOWN);
        shown.pending.truncate(MAX_SHOWN);
        let text = render::changes(&shown);
        let mut out = anstream::stdout().lock();
        if self.drawn > 0 {
            // cursor up, clear below
            write!(out, "\x1b[{}A\x1b[J", self.drawn)?;
        }
        // no line wrapping, so that the number of lines is known
        write!(out, "\x1b[?7l{text}\x1b[?7h")?;
        let more = (list.items.len() + list.pending.len()) - (shown.items.len() + shown.pending.len());
        if more > 0 {
            writeln!(out, "  and {more} more")?;
        }
        self.drawn = text.lines().count() + usize::from(more > 0);
        out.flush()
    }

    fn print(&mut self, list: &ChangeList) -> io::Result<()> {
        let mut out = anstream::stdout().lock();
        for line in self.progress.lines(list) {
            writeln!(out, "{} {line}", Timestamp::now().strftime("%H:%M:%S"))?;
        }
        out.flush()
    }
}
