//! The shell: watches what tells of changes, and says what is new; on a terminal one table that is kept up to date.

use std::{
    io::{self, IsTerminal as _, Write as _},
    time::Duration,
};

use futures::{StreamExt as _, stream::BoxStream};
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

use super::{ChangeList, Objects, changes};
use crate::{
    args::{ChangesArgs, Output},
    render::{self, RenderError},
};

/// Events that come within this time are looked at together.
const TOGETHER: Duration = Duration::from_millis(200);
/// The times in a table on a terminal go on although nothing changes.
const TICK: Duration = Duration::from_secs(1);
/// A cluster that answers nothing for so long is told.
const PATIENCE: Duration = Duration::from_secs(15);

/// Why nothing can be followed.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The API server.
    #[error("watching: {0}")]
    Watch(#[from] Box<watcher::Error>),
    /// The API server says nothing.
    #[error("the API server has not answered for {} s", PATIENCE.as_secs())]
    Silent,
    /// Standard output is gone.
    #[error("writing: {0}")]
    Write(#[from] io::Error),
    /// The answer cannot be written.
    #[error(transparent)]
    Render(#[from] RenderError),
}

/// What is going on now, in the form that is asked for.
pub fn once(list: &ChangeList, output: Output) -> Result<String, RenderError> {
    render::document(list, output, || render::changes(list))
}

/// Follows the changes until none is left; answers with the last that was seen.
pub async fn follow(client: &Client, args: &ChangesArgs) -> Result<ChangeList, FollowError> {
    let (nodes, on_nodes) = watch::<GpuNode>(client);
    let (pools, on_pools) = watch::<GpuPool>(client);
    let (tenants, on_tenants) = watch::<GpuTenant>(client);
    let mut events = futures::stream::select_all([on_nodes, on_pools, on_tenants]);
    let read = || Objects { nodes: all(&nodes), pools: all(&pools), tenants: all(&tenants) };
    let filled = async {
        let mut lists = 0;
        while lists < 3 {
            lists += usize::from(events.next().await.transpose().map_err(Box::new)?.unwrap_or_default());
        }
        Ok::<(), FollowError>(())
    };
    tokio::time::timeout(PATIENCE, filled).await.map_err(|_| FollowError::Silent)??;
    if args.once || args.output != Output::Table {
        let list = changes(&read(), Timestamp::now());
        anstream::print!("{}", once(&list, args.output)?);
        return Ok(list);
    }
    let mut screen = Screen::new();
    loop {
        let list = changes(&read(), Timestamp::now());
        screen.show(&list)?;
        if list.is_over() {
            screen.end(&list)?;
            return Ok(list);
        }
        tokio::select! {
            event = events.next() => {
                if let Some(Err(error)) = event {
                    // a watch comes back by itself; what has to be said once is said
                    anstream::eprintln!("watching: {error}");
                }
                tokio::time::sleep(TOGETHER).await;
            }
            () = tokio::time::sleep(TICK), if screen.terminal => {}
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
    let events = watcher(Api::<K>::all(client.clone()), watcher::Config::default()).default_backoff().reflect(writer);
    let events = events.map(|event| event.map(|e| matches!(e, watcher::Event::InitDone)));
    (store, events.boxed())
}

/// Standard output: a terminal is drawn over, anything else gets a line for each piece of news.
struct Screen {
    terminal: bool,
    /// Lines that the last table has on the terminal.
    drawn: usize,
    told: Vec<String>,
}

impl Screen {
    fn new() -> Self {
        Self { terminal: io::stdout().is_terminal(), drawn: 0, told: Vec::new() }
    }

    fn show(&mut self, list: &ChangeList) -> io::Result<()> {
        if !self.terminal {
            return self.tell(list);
        }
        let text = render::changes(list);
        let mut out = anstream::stdout().lock();
        if self.drawn > 0 {
            // up, and clear what is below
            write!(out, "\x1b[{}A\x1b[J", self.drawn)?;
        }
        write!(out, "{text}")?;
        self.drawn = text.lines().count();
        out.flush()
    }

    fn tell(&mut self, list: &ChangeList) -> io::Result<()> {
        let mut out = anstream::stdout().lock();
        let lines: Vec<String> = list.items.iter().map(render::line).chain(list.pending.iter().cloned()).collect();
        for line in lines.iter().filter(|l| !self.told.contains(l)) {
            writeln!(out, "{} {line}", Timestamp::now().strftime("%H:%M:%S"))?;
        }
        self.told = lines;
        out.flush()
    }

    fn end(&mut self, list: &ChangeList) -> io::Result<()> {
        let mut out = anstream::stdout().lock();
        match list.items.iter().filter(|c| c.failed).count() {
            0 if self.terminal && self.drawn == 1 && list.items.is_empty() => {}
            0 => writeln!(out, "no GPU is changing")?,
            n => writeln!(out, "no GPU is changing; the last change of {n} failed")?,
        }
        out.flush()
    }
}
