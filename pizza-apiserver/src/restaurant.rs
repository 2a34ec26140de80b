//! The wiring: resources, menu, orders, admission and pricing, put into a server.

use std::sync::Arc;

use anyhow::Context as _;
use apiserver::{
    admission::{Chain, Plugins, namespace_lifecycle::NamespaceLifecycle},
    endpoint::ApiGroup,
    leader::LeaderElection,
    options::{RecommendedConfig, RecommendedOptions},
    registry::{Change, Environment, Informer, ResourceHandler, Store},
    scheme::Kind,
    server::{PreparedServer, VersionInfo},
};
use tokio_util::sync::CancellationToken;

use crate::{
    GROUP,
    admission::PizzaToppings,
    menu::Menu,
    orders::{self, Orders},
    pizza::{self, Pizza, strategy::PizzaStrategy},
    pricing::{Due, Pricer},
    topping::{self, Topping, strategy::ToppingStrategy},
};

/// The versions, the preferred one first.
const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha1"];

/// The record of who re-prices. It lies among the group's own keys, wherever those are.
const PRICING_LEASE: &str = "/restaurant.programming-kubernetes.info/leader-election/pricing";

/// Makes the restaurant's server from its flags.
///
/// # Errors
/// When flags are wrong, or something that they name cannot be opened.
pub async fn server(options: &RecommendedOptions) -> anyhow::Result<PreparedServer> {
    let RecommendedConfig { mut config, storage, cluster, min_watch_timeout, .. } =
        options.config(VersionInfo::of_crate(env!("CARGO_PKG_VERSION"))).await?;

    let (authorizer, tasks) = (config.authorizer_handle(), config.tasks().clone());
    let environment = |admission: Chain| Environment {
        storage: storage.clone(),
        admission: Arc::new(admission),
        authorizer: authorizer.clone(),
        tasks: tasks.clone(),
        min_request_timeout: min_watch_timeout,
    };
    let orders = Arc::new(Orders::new(authorizer.clone()));
    let due = Arc::new(Due::default());
    // A view of the toppings for look-ups only: admission needs the menu, and what writes needs admission.
    let toppings = Store::new(topping_kind(), ToppingStrategy::new(orders.clone()), environment(Chain::default()));
    let topping_informer = Arc::new(Informer::new().on_change({
        let (orders, due) = (orders.clone(), due.clone());
        move |change: &Change<'_, Topping>| {
            due.add(orders.using(change.object().metadata.name.as_deref().unwrap_or_default()))
        }
    }));
    let pizza_informer = Arc::new(Informer::new().on_change({
        let (orders, due) = (orders.clone(), due.clone());
        move |change| {
            orders.apply(change);
            due.add([orders::key(change.object())]);
        }
    }));
    let menu = Arc::new(Menu::new(topping_informer.clone(), toppings.clone()));

    let mut plugins = Plugins::default();
    let mut namespaces = None;
    if let Some(client) = cluster {
        let (lifecycle, cache) = NamespaceLifecycle::new(client);
        config = config.readiness_check(lifecycle.check());
        plugins = plugins.on(lifecycle);
        namespaces = Some(cache);
    }
    let chain = options.admission.chain(plugins.on(PizzaToppings::new(menu.clone())))?;
    let environment = environment(chain);
    let pizzas = Store::new(pizza_kind(), PizzaStrategy::new(menu.clone()), environment.clone());
    let pricer = Pricer::new(due, menu, pizza_informer.clone(), pizzas.clone());

    let mut server = config.complete().server();
    server.install(ApiGroup {
        name: GROUP.to_owned(),
        versions: VERSIONS.map(str::to_owned).to_vec(),
        endpoints: vec![
            Arc::new(ResourceHandler::over(pizzas.clone())),
            Arc::new(ResourceHandler::new(topping_kind(), ToppingStrategy::new(orders), environment)),
        ],
    })?;
    server.add_post_start_hook("start-pizza-apiserver-informers", move |context| async move {
        let (stop, tasks) = (context.stop, context.tasks);
        if let Some(namespaces) = namespaces {
            tasks.spawn(namespaces.run(stop.clone()));
        }
        tasks.spawn({
            let stop = stop.clone();
            async move { topping_informer.follow(&toppings, stop).await }
        });
        tasks.spawn({
            let (stop, pizzas) = (stop.clone(), pizzas);
            async move { pizza_informer.follow(&pizzas, stop).await }
        });
        tasks.spawn(price_while_leading(pricer, storage, stop));
        Ok(())
    });
    Ok(server.prepare()?)
}

/// Re-prices whenever this replica is the one to do it.
async fn price_while_leading(pricer: Pricer, storage: Arc<dyn apiserver::storage::Storage>, stop: CancellationToken) {
    let identity = format!("pizza-apiserver_{}", uuid::Uuid::new_v4());
    let election = LeaderElection::new(PRICING_LEASE, identity);
    let outcome = election.run(storage, stop, |leading| {
        let pricer = &pricer;
        async move {
            let _no_longer = leading.run_until_cancelled(pricer.lead()).await;
        }
    });
    if let Err(error) = outcome.await.context("the election of who sets prices") {
        tracing::error!("{error:#}");
    }
}

fn pizza_kind() -> Kind<Pizza> {
    Kind::builder(GROUP, "Pizza").storage_version::<pizza::v1beta1::Pizza>().version::<pizza::v1alpha1::Pizza>().build()
}

fn topping_kind() -> Kind<Topping> {
    Kind::builder(GROUP, "Topping")
        .storage_version::<topping::versions::v1beta1::Topping>()
        .version::<topping::versions::v1alpha1::Topping>()
        .build()
}
