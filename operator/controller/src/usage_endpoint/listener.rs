//! Ends TLS and bounds connections: in all, from one address, in a second, and in time, with one request each, so that a team that opens many does not keep the others out for long.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::certificate::Acceptor;

/// Connections at once.
const MOST: usize = 64;
/// Connections at once from one address; pods of a team have one each.
const MOST_OF_ADDRESS: usize = 8;
/// Longest time of a connection: a scrape takes a second or two.
const LONGEST: Duration = Duration::from_secs(30);
/// Longest time until the head of a request is complete.
const LONGEST_HEAD: Duration = Duration::from_secs(5);
/// After an error of the system, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// New connections of one address, each with one request, in a second on average …
const RATE: f64 = 2.0;
/// … and at once.
const BURST: f64 = 16.0;
/// Addresses without connections are forgotten when there are more.
const ADDRESSES: usize = 1024;

/// Connections of one address.
#[derive(Debug)]
struct OfAddress {
    open: usize,
    /// New connections that it may make, as of this time.
    left: f64,
    at: Instant,
}

impl OfAddress {
    /// What it may make now.
    fn left(&self, now: Instant) -> f64 {
        (self.left + RATE * now.duration_since(self.at).as_secs_f64()).min(BURST)
    }
}

/// Connections by address.
#[derive(Debug, Default)]
struct Connections(HashMap<IpAddr, OfAddress>);

impl Connections {
    /// One more connection; false: there are too many, or they come too fast.
    fn admit(&mut self, address: IpAddr, now: Instant) -> bool {
        if self.0.len() > ADDRESSES {
            self.0.retain(|_, of| of.open > 0 || of.left(now) < BURST);
        }
        let all: usize = self.0.values().map(|of| of.open).sum();
        let of = self.0.entry(address).or_insert(OfAddress { open: 0, left: BURST, at: now });
        let left = of.left(now);
        let admitted = all < MOST && of.open < MOST_OF_ADDRESS && left >= 1.0;
        if admitted {
            *of = OfAddress { open: of.open + 1, left: left - 1.0, at: now };
        }
        admitted
    }

    fn ended(&mut self, address: IpAddr) {
        if let Some(of) = self.0.get_mut(&address) {
            of.open = of.open.saturating_sub(1);
        }
    }
}

/// A connection that is counted until this is dropped.
struct Counted(Arc<Mutex<Connections>>, IpAddr);

impl Counted {
    fn new(connections: &Arc<Mutex<Connections>>, address: IpAddr) -> Option<Self> {
        let admitted = connections.lock().unwrap_or_else(PoisonError::into_inner).admit(address, Instant::now());
        admitted.then(|| Self(connections.clone(), address))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).ended(self.1);
    }
}

/// Serves until `stop` is cancelled.
pub async fn serve(listener: TcpListener, acceptor: Acceptor, router: Router, stop: CancellationToken) {
    let connections: Arc<Mutex<Connections>> = Arc::default();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "the usage endpoint cannot accept a connection");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        // without an answer: a handshake for it would cost what the bound saves
        let Some(counted) = Counted::new(&connections, address.ip()) else { continue };
        let connection = connection(stream, acceptor.clone(), router.clone());
        tokio::spawn(async move {
            // a client that is too slow or speaks no TLS is its own concern
            drop(tokio::time::timeout(LONGEST, connection).await);
            drop(counted);
        });
    }
}

async fn connection(stream: TcpStream, acceptor: Acceptor, router: Router) {
    let handshake = acceptor.borrow().accept(stream);
    let Ok(Ok(stream)) = tokio::time::timeout(LONGEST_HEAD, handshake).await else { return };
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).keep_alive(false).header_read_timeout(LONGEST_HEAD).max_buf_size(64 << 10);
    drop(server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).await);
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::AsyncReadExt as _;

    use super::*;

    fn address(number: usize) -> IpAddr {
        Ipv4Addr::from(u32::try_from(number).unwrap()).into()
    }

    #[test]
    fn one_address_has_eight_connections_and_all_have_sixty_four() {
        let (mut connections, now) = (Connections::default(), Instant::now());
        let of_one = (0..20).filter(|_| connections.admit(address(1), now)).count();
        assert_eq!(of_one, MOST_OF_ADDRESS);
        let of_others = (2..200).filter(|number| connections.admit(address(*number), now)).count();
        assert_eq!(of_one + of_others, MOST);
        connections.ended(address(1));
        assert!(connections.admit(address(300), now) && !connections.admit(address(301), now));
    }

    #[test]
    fn address_that_connects_again_and_again_is_slowed_down_and_then_forgotten() {
        let (mut connections, start) = (Connections::default(), Instant::now());
        let connect = |connections: &mut Connections, now| {
            let admitted = connections.admit(address(1), now);
            if admitted {
                connections.ended(address(1));
            }
            admitted
        };
        let first = (0..100).filter(|_| connect(&mut connections, start)).count();
        let later = (0..100).filter(|_| connect(&mut connections, start + Duration::from_secs(3))).count();
        assert_eq!((first, later), (16, 6));
        for number in 0..=ADDRESSES {
            connections.admit(address(1000 + number), start);
            connections.ended(address(1000 + number));
        }
        assert!(connections.admit(address(1), start + Duration::from_mins(1)));
        assert_eq!(connections.0.len(), 1, "nothing is kept of addresses without connections");
    }

    #[tokio::test]
    async fn ninth_connection_of_an_address_is_closed_and_the_eight_stay() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = super::super::certificate::acceptor(None, vec!["usage".to_owned()]).await;
        let stop = CancellationToken::new();
        let served = tokio::spawn(serve(listener, acceptor, Router::new(), stop.clone()));
        let mut open = Vec::new();
        for _ in 0..MOST_OF_ADDRESS {
            open.push(TcpStream::connect(address).await.unwrap());
        }
        let mut ninth = TcpStream::connect(address).await.unwrap();
        // closed without an answer: an end, or a reset if bytes are under way
        assert!(ninth.read(&mut [0; 1]).await.is_ok_and(|length| length == 0));
        for stream in &mut open {
            assert!(tokio::time::timeout(Duration::from_millis(5), stream.read(&mut [0; 1])).await.is_err());
        }
        stop.cancel();
        served.await.unwrap();
    }
}
