//! Addresses of granted names. All sandboxes of a consumer share them, so that a handler that connects for every message does
//! not ask the name server for every message.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::address::{Prohibited, reachable};
use crate::host_limit;
use hostler_handler::Limit;
use hostler_types::BoxFuture;
use hostler_types::metadata::is_metadata;

/// Time for which the addresses of a name are used. The system's resolver does not report the time that the name server gives.
const FRESH: Duration = Duration::from_secs(30);

/// Time for which a failed look-up is not repeated.
const FAILED: Duration = Duration::from_secs(1);

/// Maximum number of addresses of a name. More are not used.
pub(super) const MAX_ADDRESSES: usize = 32;

/// Looks a name up. Returns its addresses as the system orders them.
pub(super) type Resolver = Arc<dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync>;

/// Returns the resolver of the system.
pub(super) fn system() -> Resolver {
    Arc::new(|name| {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            Ok(found.map(|at| at.ip()).collect())
        })
    })
}

/// The reason for which a granted name has no addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unresolved {
    /// The look-up failed. The field is the host limit that caused this, if any.
    Failed(Option<Limit>),
    /// The name has no address that guests may reach.
    Prohibited(Prohibited),
}

/// A granted name with the addresses that were found last.
pub(super) struct GrantedName {
    name: String,
    networks: Arc<[IpNet]>,
    resolver: Resolver,
    last: Mutex<Option<Answer>>,
}

struct Answer {
    found: Result<Arc<[IpAddr]>, Unresolved>,
    until: Instant,
}

impl GrantedName {
    /// Creates a granted name that has not been looked up. `networks`: networks that guests may reach besides public ones.
    pub(super) fn new(name: &str, networks: &Arc<[IpNet]>, resolver: &Resolver) -> Self {
        let (networks, resolver) = (Arc::clone(networks), Arc::clone(resolver));
        Self { name: name.to_owned(), networks, resolver, last: Mutex::new(None) }
    }

    /// Returns the addresses of the name that guests may reach. At most one look-up of the name runs at a time, and it ends even
    /// if the guest that asked is stopped: a slow name server occupies one thread, not one for each message.
    pub(super) async fn addresses(self: &Arc<Self>) -> Result<Arc<[IpAddr]>, Unresolved> {
        if let Ok(last) = self.last.try_lock()
            && let Some(answer) = last.as_ref().filter(|answer| answer.is_fresh())
        {
            return answer.found.clone();
        }
        let name = Arc::clone(self);
        let found = tokio::spawn(async move { name.refreshed().await });
        found.await.unwrap_or(Err(Unresolved::Failed(None)))
    }

    async fn refreshed(&self) -> Result<Arc<[IpAddr]>, Unresolved> {
        let mut last = self.last.lock().await;
        if let Some(answer) = last.as_ref().filter(|answer| answer.is_fresh()) {
            return answer.found.clone();
        }
        let found = match (self.resolver)(self.name.clone()).await {
            Ok(found) => permitted(&self.name, found, &self.networks).map_err(Unresolved::Prohibited),
            Err(error) => Err(Unresolved::Failed(host_limit::of(&error))),
        };
        let lasts = if found.is_ok() { FRESH } else { FAILED };
        *last = Some(Answer { found: found.clone(), until: Instant::now() + lasts });
        found
    }
}

impl Answer {
    fn is_fresh(&self) -> bool {
        Instant::now() < self.until
    }
}

/// Returns the addresses in `found` to which guests may connect under `name`. The addresses of metadata services are never among
/// them, whatever networks are granted.
fn permitted(name: &str, found: Vec<IpAddr>, networks: &[IpNet]) -> Result<Arc<[IpAddr]>, Prohibited> {
    let first = found.first().copied();
    let places = found.into_iter().filter(|address| !is_metadata(*address)).map(|address| SocketAddr::new(address, 0));
    let reached = reachable(name, places.collect(), networks)?;
    match (reached.is_empty(), first) {
        (true, Some(address)) => Err(Prohibited { name: name.to_owned(), address }),
        _ => Ok(reached.iter().map(|at| at.ip().to_canonical()).take(MAX_ADDRESSES).collect()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn networks(networks: &[&str]) -> Arc<[IpNet]> {
        networks.iter().map(|network| network.parse().unwrap()).collect()
    }

    fn found(name: &str, addresses: &[&str], granted: &[&str]) -> Result<Vec<String>, Prohibited> {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        let permitted = permitted(name, addresses, &networks(granted))?;
        Ok(permitted.iter().map(ToString::to_string).collect())
    }

    /// Returns a name that resolves to each of these addresses in turn, and the number of look-ups so far.
    fn counted(addresses: &'static [&'static str]) -> (Arc<GrantedName>, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&count);
        let resolver: Resolver = Arc::new(move |_| {
            let address = addresses[counter.fetch_add(1, Ordering::SeqCst) % addresses.len()];
            Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                if address.is_empty() {
                    Err(io::Error::other("no such name"))
                } else {
                    Ok(vec![address.parse().unwrap()])
                }
            })
        });
        (Arc::new(GrantedName::new("db.example", &networks(&[]), &resolver)), count)
    }

    #[test]
    fn names_lead_to_public_addresses_and_granted_networks() {
        assert_eq!(found("db", &["10.0.0.7", "1.1.1.1"], &[]).unwrap(), ["1.1.1.1"]);
        assert_eq!(found("db", &["::ffff:10.0.0.7"], &["10.0.0.0/8"]).unwrap(), ["10.0.0.7"]);
        assert_eq!(found("localhost", &["127.0.0.1", "::1"], &[]).unwrap(), ["127.0.0.1", "::1"]);
        let refused = found("db", &["10.0.0.7"], &[]).unwrap_err();
        assert_eq!(refused.address.to_string(), "10.0.0.7");
    }

    #[test]
    fn no_grant_of_networks_leads_to_a_metadata_service() {
        let all = ["0.0.0.0/0", "::/0"];
        for address in ["169.254.169.254", "169.254.170.2", "169.254.170.23", "fd00:ec2::254", "64:ff9b::a9fe:a9fe"] {
            assert!(found("db", &[address], &all).is_err(), "{address}");
            assert_eq!(found("db", &[address, "10.0.0.1"], &all).unwrap(), ["10.0.0.1"]);
        }
        assert_eq!(found("db", &["169.254.169.253"], &all).unwrap(), ["169.254.169.253"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_is_looked_up_once_for_all_who_ask_until_it_is_old() {
        let (name, count) = counted(&["1.1.1.1"]);
        let asked: Vec<_> = (0..20).map(|_| Arc::clone(&name)).collect();
        let asked = asked.into_iter().map(|name| tokio::spawn(async move { name.addresses().await.unwrap().len() }));
        for answer in asked.collect::<Vec<_>>() {
            assert_eq!(answer.await.unwrap(), 1);
        }
        assert_eq!(count.load(Ordering::SeqCst), 1);
        tokio::time::advance(FRESH).await;
        name.addresses().await.unwrap();
        assert_eq!(count.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_replaces_another_is_checked_like_the_first() {
        let (name, _) = counted(&["1.1.1.1", "169.254.169.254", "10.0.0.7"]);
        let first: Arc<[IpAddr]> = ["1.1.1.1".parse().unwrap()].into();
        assert_eq!(name.addresses().await, Ok(Arc::clone(&first)));
        tokio::time::advance(FRESH - Duration::from_secs(1)).await;
        assert_eq!(name.addresses().await, Ok(first));
        for (address, wait) in [("169.254.169.254", FRESH), ("10.0.0.7", FAILED)] {
            tokio::time::advance(wait).await;
            let Err(Unresolved::Prohibited(prohibited)) = name.addresses().await else { panic!("{address} is used") };
            assert_eq!(prohibited.address.to_string(), address);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_look_up_is_repeated_soon_but_not_at_once() {
        let (name, count) = counted(&[""]);
        for _ in 0..5 {
            assert_eq!(name.addresses().await, Err(Unresolved::Failed(None)));
        }
        assert_eq!(count.load(Ordering::SeqCst), 1);
        tokio::time::advance(FAILED).await;
        name.addresses().await.unwrap_err();
        assert_eq!(count.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn guests_that_give_up_leave_one_look_up_behind() {
        let (name, count) = counted(&["1.1.1.1"]);
        for _ in 0..5 {
            let given_up = tokio::time::timeout(Duration::from_millis(1), name.addresses()).await;
            assert!(given_up.is_err());
        }
        assert_eq!(name.addresses().await.unwrap().len(), 1);
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }
}
