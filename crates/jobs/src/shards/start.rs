//! The start of a service while some of its databases are away, and their admission once they answer.

use std::sync::{Arc, Weak};

use futures_util::future::join_all;
use tokio::time::sleep;

use crate::shards::Shards;
use crate::shards::answers::{PROBE, is_no_answer};
use crate::shards::place::PlacedError;

impl Shards {
    /// Brings the schemas of those databases up to date that answer, as [`Self::migrate`]. The others count as away, and are admitted
    /// in the background as they come: none is written to before its schema and its place in the list have been checked.
    ///
    /// # Errors
    /// As [`Self::migrate`], if no database answers, or for one that answers.
    pub async fn start(&self) -> Result<(), PlacedError> {
        if self.single().is_some() {
            return self.migrate().await;
        }
        let checked = join_all((0..self.count()).map(|number| self.check_place(number))).await;
        let (mut present, mut absent) = (Vec::new(), Vec::new());
        for (number, checked) in checked.into_iter().enumerate() {
            match checked {
                Ok(()) => present.push(number),
                Err(error) if is_no_answer(&error.error) => absent.push(error),
                Err(error) => return Err(error),
            }
        }
        if present.is_empty()
            && let Some(error) = absent.pop()
        {
            return Err(error);
        }
        self.refuse_same(&present).await?;
        for number in &present {
            self.set_up(*number).await?;
        }
        self.share_secret(&present).await?;
        for error in absent {
            self.hold_back(&error);
        }
        Ok(())
    }

    /// Keeps all calls from a database that did not answer, until it has been admitted.
    fn hold_back(&self, absent: &PlacedError) {
        let number = absent.number;
        let Some(store) = self.stores().get(number) else { return };
        store.set_closed(true);
        if !self.away.add(number) {
            return;
        }
        store.note_silence(&absent.error);
        let (stores, changed, away) = (Arc::clone(&self.stores), Arc::clone(&self.changed), self.away.weak());
        tokio::spawn(async move {
            let mut last = String::new();
            loop {
                sleep(PROBE).await;
                // Ends with the last of those that would ask the database.
                let Some(away) = Weak::upgrade(&away) else { return };
                let shards = Shards { stores: Arc::clone(&stores), away: away.into(), changed: Arc::clone(&changed) };
                match shards.admit(number).await {
                    Ok(()) => return,
                    Err(error) if is_no_answer(&error.error) => {}
                    Err(error) => {
                        let text = error.to_string();
                        if last != text {
                            tracing::error!(error = text, "a database answers, but is not used; trying again");
                            last = text;
                        }
                    }
                }
            }
        });
    }

    /// Checks a database that was held back, brings its schema up to date, and lets calls through.
    async fn admit(&self, number: usize) -> Result<(), PlacedError> {
        self.check_place(number).await?;
        let present: Vec<usize> = (0..self.count()).filter(|other| *other == number || !self.is_away(*other)).collect();
        self.refuse_same(&present).await?;
        self.set_up(number).await?;
        self.share_secret(&present).await?;
        if let Some(store) = self.stores().get(number) {
            store.set_closed(false);
            store.note_answer();
        }
        self.away.remove(number);
        self.note_change();
        Ok(())
    }
}
