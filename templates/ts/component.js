// What is built: index.js, wired to hostler's functions. Node cannot load the first two, so tests import index.js.
import * as context from "hostler:consumer/context@0.1.0";
import * as producer from "hostler:consumer/producer@0.1.0";
import { component } from "./hostler.js";
import * as app from "./index.js";

export const { handler } = component(app, { ...context, ...producer });
