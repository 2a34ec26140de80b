//! The restaurant as its guests see it: a whole server on memory storage, asked by a Kubernetes client over TLS.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::{path::Path, time::Duration};

use apiserver::options::RecommendedOptions;
use clap::Parser;
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    core::GroupVersionKind,
};
use pizza_apiserver::{GROUP, restaurant};
use serde_json::{Value, json};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: RecommendedOptions,
}

/// A running server, and a client of it.
struct Restaurant {
    client: Client,
    stop: CancellationToken,
    server: JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Restaurant {
    async fn open(flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let kubeconfig = path("kubeconfig");
        let own = ["--standalone", "--storage-backend=memory", "--secure-port=0"].map(str::to_owned);
        let files = [format!("--cert-dir={}", path("certificates")), format!("--standalone-kubeconfig={kubeconfig}")];
        let flags = flags.iter().map(|flag| (*flag).to_owned());
        let arguments = ["restaurant".to_owned()].into_iter().chain(own).chain(files).chain(flags);
        let options = Arguments::parse_from(arguments).options;
        let server = restaurant::server(&options).await.unwrap();
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let server = tokio::spawn(async move { server.run(stopped).await.unwrap() });
        let client = client(Path::new(&kubeconfig)).await;
        let restaurant = Self { client, stop, server, _folder: folder };
        for (name, cost) in [("mozzarella", 1.0), ("salami", 0.2), ("tomato", 0.1)] {
            restaurant.offer(name, cost).await;
        }
        restaurant
    }

    async fn close(self) {
        self.stop.cancel();
        self.server.await.unwrap();
    }

    fn toppings(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &resource("v1beta1", "Topping"))
    }

    fn pizzas(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), "default", &resource("v1beta1", "Pizza"))
    }

    async fn offer(&self, name: &str, cost: f64) {
        let topping = object("v1beta1", "Topping", name, &json!({ "cost": cost }));
        self.toppings().create(&PostParams::default(), &topping).await.unwrap();
    }

    async fn order(&self, name: &str, toppings: &[&str]) -> kube::Result<DynamicObject> {
        let toppings: Vec<_> = toppings.iter().map(|name| json!({ "name": name })).collect();
        let pizza = object("v1beta1", "Pizza", name, &json!({ "toppings": toppings }));
        self.pizzas().create(&PostParams::default(), &pizza).await
    }

    /// Waits until the pizza's status is as wanted.
    async fn wait_for(&self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let status = self.pizzas().get(name).await.unwrap().data["status"].clone();
            if wanted(&status) {
                return status;
            }
            assert!(Instant::now() < deadline, "the status stays {status}");
            sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn client(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    let client = Client::try_from(config).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while client.request_text(http_get("/readyz")).await.is_err() {
        assert!(Instant::now() < deadline, "the server does not become ready");
        sleep(Duration::from_millis(20)).await;
    }
    client
}

fn http_get(path: &str) -> http::Request<Vec<u8>> {
    http::Request::get(path).body(Vec::new()).unwrap()
}

fn resource(version: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, version, kind))
}

fn object(version: &str, kind: &str, name: &str, spec: &Value) -> DynamicObject {
    let mut object = DynamicObject::new(name, &resource(version, kind));
    object.data = json!({ "spec": spec });
    object
}

fn refusal(result: kube::Result<DynamicObject>) -> (u16, String) {
    match result {
        Err(kube::Error::Api(status)) => (status.code, status.message),
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_pizza_has_its_price_and_keeps_its_resource_version() {
    let restaurant = Restaurant::open(&[]).await;
    let made = restaurant.order("margherita", &["mozzarella", "tomato"]).await.unwrap();
    assert_eq!(made.data["status"]["cost"], json!(1.1));
    assert_eq!(made.data["status"]["conditions"][0]["type"], "Priced");
    assert_eq!(made.data["status"]["conditions"][0]["status"], "True");
    // Once a pizza that came later is priced anew, nobody is on the way to write the first one again.
    restaurant.order("later", &["salami"]).await.unwrap();
    let patch = json!({ "spec": { "cost": 0.4 } });
    restaurant.toppings().patch("salami", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    restaurant.wait_for("later", |status| status["cost"] == json!(0.4)).await;
    assert_eq!(restaurant.pizzas().get("margherita").await.unwrap().resource_version(), made.resource_version());
    restaurant.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn prices_follow_toppings_that_change_go_and_come() {
    let restaurant = Restaurant::open(&[]).await;
    restaurant.order("margherita", &["mozzarella", "tomato"]).await.unwrap();
    let patch = json!({ "spec": { "cost": 2 } });
    restaurant.toppings().patch("mozzarella", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    restaurant.wait_for("margherita", |status| status["cost"] == json!(2.1)).await;

    restaurant.toppings().delete("tomato", &DeleteParams::default()).await.unwrap();
    let status = restaurant.wait_for("margherita", |status| status["conditions"][0]["status"] == "False").await;
    assert_eq!(status.get("cost"), None);
    assert_eq!(status["conditions"][0]["reason"], "UnknownTopping");
    assert_eq!(status["conditions"][0]["message"], "no such topping: tomato");

    restaurant.offer("tomato", 0.5).await;
    let status = restaurant.wait_for("margherita", |status| status["conditions"][0]["status"] == "True").await;
    assert_eq!(status["cost"], json!(2.5));
    restaurant.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_new_toppings_of_a_living_pizza_are_checked() {
    let restaurant = Restaurant::open(&[]).await;
    let unknown = refusal(restaurant.order("hawaii", &["ananas"]).await);
    let message = "pizzas.restaurant.programming-kubernetes.info \"hawaii\" is forbidden: unknown topping: ananas";
    assert_eq!(unknown, (403, message.to_owned()));

    let pizzas = restaurant.pizzas();
    restaurant.order("margherita", &["mozzarella", "tomato"]).await.unwrap();
    restaurant.toppings().delete("tomato", &DeleteParams::default()).await.unwrap();
    let finalizer = json!({ "metadata": { "labels": { "hot": "true" }, "finalizers": ["example.com/eaten"] } });
    pizzas.patch("margherita", &PatchParams::default(), &Patch::Merge(finalizer)).await.unwrap();
    let more = json!({ "spec": { "toppings": [{ "name": "mozzarella" }, { "name": "tomato" }, { "name": "kiwi" }] } });
    let (code, message) = refusal(pizzas.patch("margherita", &PatchParams::default(), &Patch::Merge(more)).await);
    assert_eq!(code, 403);
    assert!(message.ends_with("unknown topping: kiwi"), "{message}");

    pizzas.delete("margherita", &DeleteParams::default()).await.unwrap();
    restaurant.toppings().delete("mozzarella", &DeleteParams::default()).await.unwrap();
    let eaten = json!({ "metadata": { "finalizers": null } });
    pizzas.patch("margherita", &PatchParams::default(), &Patch::Merge(eaten)).await.unwrap();
    assert!(pizzas.get_opt("margherita").await.unwrap().is_none());
    restaurant.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topping_and_a_pizza_come_and_go_in_one_breath() {
    let restaurant = Restaurant::open(&[]).await;
    for round in 0..100 {
        let name = format!("topping-{round}");
        restaurant.offer(&name, 1.0).await;
        restaurant.order("fresh", &[&name]).await.unwrap();
        restaurant.pizzas().delete("fresh", &DeleteParams::default()).await.unwrap();
        restaurant.toppings().delete(&name, &DeleteParams::default()).await.unwrap();
        assert_eq!(refusal(restaurant.order("stale", &[&name]).await).0, 403, "round {round}");
    }
    restaurant.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_plugin_a_pizza_waits_for_its_topping() {
    let restaurant = Restaurant::open(&["--disable-admission-plugins=PizzaToppings"]).await;
    let pizza = restaurant.order("hawaii", &["ananas"]).await.unwrap();
    assert_eq!(pizza.data["status"]["conditions"][0]["message"], "no such topping: ananas");
    restaurant.offer("ananas", 3.0).await;
    restaurant.wait_for("hawaii", |status| status["cost"] == json!(3)).await;
    restaurant.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_is_the_restaurants_and_the_rest_the_guests() {
    let restaurant = Restaurant::open(&[]).await;
    let pizzas = restaurant.pizzas();
    restaurant.order("margherita", &["mozzarella"]).await.unwrap();
    let cheap = json!({ "status": { "cost": 0 } });
    let pizza = pizzas.patch("margherita", &PatchParams::default(), &Patch::Merge(&cheap)).await.unwrap();
    assert_eq!(pizza.data["status"]["cost"], json!(1));
    let negative = json!({ "status": { "cost": -1 } });
    let (code, message) =
        refusal(pizzas.patch_status("margherita", &PatchParams::default(), &Patch::Merge(negative)).await);
    assert_eq!(code, 422, "{message}");
    let both = json!({ "status": { "cost": 7 }, "spec": { "toppings": [] } });
    let pizza = pizzas.patch_status("margherita", &PatchParams::default(), &Patch::Merge(both)).await.unwrap();
    assert_eq!(pizza.data["spec"]["toppings"], json!([{ "name": "mozzarella", "quantity": 1 }]));
    assert_eq!(pizza.data["status"]["cost"], json!(7));
    // Whoever may write status alone can neither label a pizza nor take its finalizers away.
    let metadata = json!({ "metadata": { "labels": { "free": "true" }, "finalizers": ["example.com/mine"] } });
    let pizza = pizzas.patch_status("margherita", &PatchParams::default(), &Patch::Merge(metadata)).await.unwrap();
    assert_eq!((pizza.metadata.labels, pizza.metadata.finalizers), (None, None));
    // The restaurant insists on its price.
    restaurant.wait_for("margherita", |status| status["cost"] == json!(1)).await;
    restaurant.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn updates_are_validated_like_creations() {
    let restaurant = Restaurant::open(&[]).await;
    restaurant.order("margherita", &["mozzarella"]).await.unwrap();
    let patch = json!({ "spec": { "toppings": [{ "name": "mozzarella", "quantity": -1 }] } });
    let (code, message) =
        refusal(restaurant.pizzas().patch("margherita", &PatchParams::default(), &Patch::Merge(patch)).await);
    let wanted = "Pizza.restaurant.programming-kubernetes.info \"margherita\" is invalid: \
        spec.toppings[0].quantity: Invalid value: -1: cannot be negative or zero";
    assert_eq!((code, message.as_str()), (422, wanted));
    for (topping, rule) in
        [("", "Invalid value: \"\": cannot be empty"), ("a/b", "Invalid value: \"a/b\": a lowercase RFC 1123")]
    {
        let (code, message) = refusal(restaurant.order("strange", &[topping]).await);
        assert_eq!(code, 422, "{message}");
        assert!(message.contains(&format!("spec.toppings[0].name: {rule}")), "{message}");
    }
    let many: Vec<String> = (0..5000).map(|n| format!("topping-{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let (code, message) = refusal(restaurant.order("tower", &many).await);
    assert_eq!(code, 422, "{message}");
    let name = refusal(restaurant.order("Margherita", &["mozzarella"]).await);
    assert_eq!(name.0, 422, "{}", name.1);
    restaurant.close().await;
}
