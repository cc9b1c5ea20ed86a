//! Bindings of a queue as they exist, compared with those of its channel. No I/O.

use hostler_types::channel::Filter;

use super::management::Bound;
use super::topology::{Binding, EVERYTHING};

impl Bound {
    fn is(&self, binding: &Binding) -> bool {
        self.exchange == binding.exchange && self.pattern == binding.pattern
    }
}

/// Returns the bindings that do not exist.
pub(super) fn missing(wanted: Vec<Binding>, bound: &[Bound]) -> Vec<Binding> {
    wanted.into_iter().filter(|wanted| !bound.iter().any(|bound| bound.is(wanted))).collect()
}

/// Returns the bindings without which a queue may lack messages, now or once those that an earlier filter has `left` are removed.
pub(super) fn uncovered(wanted: Vec<Binding>, bound: &[Bound], left: &[Binding]) -> Vec<Binding> {
    let covers = |bound: &Bound, wanted: &Binding| {
        let is_general = bound.exchange == wanted.exchange && bound.pattern == EVERYTHING;
        bound.is(wanted) || is_general && !left.iter().any(|left| bound.is(left))
    };
    wanted.into_iter().filter(|wanted| !bound.iter().any(|bound| covers(bound, wanted))).collect()
}

/// Returns `true` if these bindings of a channel do not let everything pass, so that others may bring more.
pub(super) fn are_selective(wanted: &[Binding]) -> bool {
    !wanted.is_empty() && wanted.iter().all(|binding| binding.pattern != EVERYTHING)
}

/// Returns the bindings that an earlier filter has left: they bring messages from the channel's exchange that the filter refuses.
/// `wanted`: the channel's bindings, which are to one topic exchange.
///
/// A binding with arguments is someone else's. A binding whose own pattern passes the filter brings nothing that the filter refuses.
/// No other binding makes a difference where the channel's bindings let everything pass.
pub(super) fn left_over(wanted: &[Binding], filter: &Filter, bound: &[Bound]) -> Vec<Binding> {
    let Some(Binding { exchange, queue, .. }) = wanted.first().filter(|_| are_selective(wanted)) else {
        return Vec::new();
    };
    let is_left =
        |bound: &&Bound| bound.exchange == *exchange && !bound.has_arguments && !filter.passes(Some(&bound.pattern));
    let binding =
        |bound: &Bound| Binding { exchange: exchange.clone(), queue: queue.clone(), pattern: bound.pattern.clone() };
    bound.iter().filter(is_left).map(binding).collect()
}

#[cfg(test)]
mod tests {
    use hostler_queue::ChannelSpec;

    use super::super::names::Names;
    use super::super::topology;
    use super::*;

    fn bound(exchange: &str, pattern: &str) -> Bound {
        Bound { exchange: exchange.to_owned(), pattern: pattern.to_owned(), has_arguments: false }
    }

    fn binding(pattern: &str) -> Binding {
        Binding { exchange: "shop".to_owned(), queue: "jobs".to_owned(), pattern: pattern.to_owned() }
    }

    #[test]
    fn a_binding_is_missing_unless_the_queue_gets_its_messages() {
        let wanted = || vec![binding("a"), binding("b.#")];
        let uncovered = |bound: &[Bound]| uncovered(wanted(), bound, &[]);
        assert_eq!(uncovered(&[]), wanted());
        assert_eq!(uncovered(&[bound("shop", "a")]), [binding("b.#")]);
        assert_eq!(uncovered(&[bound("shop", "#")]), []);
        assert_eq!(uncovered(&[bound("other", "#")]), wanted());
        assert_eq!(
            missing(wanted(), &[bound("shop", "#"), bound("shop", "a"), bound("other", "b.#")]),
            [binding("b.#")]
        );
    }

    /// An operator who removed the general binding would leave the queue without messages.
    #[test]
    fn a_binding_that_is_left_over_covers_no_other() {
        let (wanted, bound) = (|| vec![binding("EU")], [bound("shop", "#")]);
        let left = left_over(&wanted(), &Filter::Exact(vec!["EU".to_owned()]), &bound);
        assert_eq!(left, [binding("#")]);
        assert_eq!(uncovered(wanted(), &bound, &left), wanted());
    }

    #[test]
    fn only_bindings_that_bring_what_the_filter_refuses_are_left_over() {
        let list = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        let by_hand = Bound { has_arguments: true, ..bound("shop", "hand") };
        let all = ["#", "EU", "EU.#", "EU.new", "US", "US.*", ""].map(|pattern| bound("shop", pattern));
        let all = [&all[..], &[by_hand, bound("other", "US"), bound("", "jobs")]].concat();
        let left = |filter: Filter| {
            let channel = "shop.jobs".parse().unwrap();
            let spec = ChannelSpec { filter: filter.clone(), ..ChannelSpec::new(channel) };
            let wanted = topology::bindings(&Names::new("", ""), &spec).unwrap();
            let left = left_over(&wanted, &filter, &all);
            assert!(left.iter().all(|left| *left == binding(&left.pattern)), "{left:?}");
            left.into_iter().map(|left| left.pattern).collect::<Vec<_>>()
        };
        assert_eq!(left(Filter::Exact(list(&["EU", "US"]))), ["#", "EU.#", "EU.new", "US.*", ""]);
        assert_eq!(left(Filter::Prefix(list(&["EU."]))), ["#", "EU", "US", "US.*", ""]);
        for everything in [Filter::All, Filter::Exclude(list(&["US"])), Filter::Prefix(list(&["E"]))] {
            assert_eq!(left(everything), list(&[]));
        }
        assert_eq!(left_over(&[], &Filter::All, &all), [], "the channel has no exchange");
    }
}
